"""NVML: NVIDIA's own driver library, read through `nvidia-ml-py`. The source most machines use.

In goes nothing but the driver; out come devices, MIG instances, processes, profiling and XIDs. Every number
can be absent: each call is refused, fails or hangs on its own (`gate.py`, `lane.py`). Utilisation "now" is a
mean over the last driver period, so the busy seconds come from the driver's sample buffer (`samples.py`).
"""

from __future__ import annotations

import logging
from functools import cache

from gpuscope.settings import Settings
from gpuscope.sources import Source, SourceSpec

log = logging.getLogger("gpuscope.source")


def open_nvml(settings: Settings) -> Source:
    from gpuscope.sources.nvml.source import NvmlSource
    from gpuscope.sources.nvml.tiers import plan_tiers

    tier_plan = plan_tiers(settings.dcgm_fields, settings.dcgm_interval)
    source = NvmlSource(
        quick_start=True,
        reading_seconds=max(0.5, 0.8 * settings.interval),
        stale_seconds=SOURCE.deadline_seconds(settings),
        tier_plan=tier_plan,
    )
    for cost in tier_plan.costs():
        _say_once(f"source nvml: {cost}, now every {settings.interval:g} s and GPU on request")
    return source


@cache
def _say_once(text: str) -> None:
    """The source is opened again after each failure; what it costs stays the same."""
    log.warning("%s", text)


SOURCE = SourceSpec(name="nvml", summary="reads the NVIDIA driver through its library, NVML", open=open_nvml)
