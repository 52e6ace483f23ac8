"""The reasons for reduced clocks: the bits of the driver's mask by nvidia-smi's names."""

from __future__ import annotations

from typing import Final

THROTTLE_REASONS: Final[dict[str, int]] = {
    "gpu_idle": 0x001,
    "applications_clocks_setting": 0x002,
    "sw_power_cap": 0x004,
    "hw_slowdown": 0x008,
    "sync_boost": 0x010,
    "sw_thermal_slowdown": 0x020,
    "hw_thermal_slowdown": 0x040,
    "hw_power_brake_slowdown": 0x080,
    "display_clock_setting": 0x100,
}

NOT_THROTTLING: Final = frozenset({"gpu_idle"})
"""Reasons that do not slow down work: the GPU is idle."""
