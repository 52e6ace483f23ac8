"""A load on the simulated GPUs of a demo server: the server simulates, this follows what its live view shows.

A simulated GPU may also work for its own simulated job, so a metric may show more than the load asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuscope.errors import GpuscopeError
from gpuscope.load.comparison import LoadedGpu
from gpuscope.load.device_process import DeviceLoad
from gpuscope.load.duty_cycle import Progress
from gpuscope.readings import ABSENT, Device, MigInstance, Uuid

LIVE_KEYS = {
    "utilization_ratio": "busy",
    "sm_active_ratio": "sm",
    "tensor_active_ratio": "tensor",
    "dram_active_ratio": "dram",
    "power_watts": "power",
}

Show = Callable[[float, LoadedGpu, Device | MigInstance | None], None]


def loaded_gpus(answer: Any) -> list[LoadedGpu]:
    """The GPUs that `POST /api/demo/load` names."""
    try:
        return [
            LoadedGpu(str(gpu["gpu"]), str(gpu["uuid"]), str(gpu.get("model", "")) or ABSENT, is_shared=True)
            for gpu in answer["gpus"]
        ]
    except (TypeError, KeyError, AttributeError):
        raise GpuscopeError("the server's answer names no GPU; is it a `gpuscope up --demo`?") from None


def follow_demo_load(
    gpus: Sequence[LoadedGpu],
    load: DeviceLoad,
    read_live: Callable[[], Any],
    show: Show,
    wait: Callable[[float], object],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Each second until the load has ended."""
    began_at = monotonic()
    while (elapsed := monotonic() - began_at) < load.duration:
        wait(min(1.0, load.duration - elapsed))
        elapsed = min(load.duration, monotonic() - began_at)
        readings = _readings(read_live())
        for gpu in gpus:
            gpu.progress.append(Progress(elapsed, 0.0, elapsed * load.target))
            reading = readings.get(gpu.uuid)
            if reading is not None:
                gpu.samples.append((elapsed, reading))
            show(elapsed, gpu, reading)


def _readings(live: Any) -> Mapping[str, Device]:
    """By UUID; what the live view does not show is absent."""
    found = {}
    for gpu in live.get("gpus", ()) if isinstance(live, dict) else ():
        values: dict[str, Any] = {name: float(gpu[key]) for name, key in LIVE_KEYS.items() if key in gpu}
        temperatures = {"gpu": float(gpu["temperature"])} if "temperature" in gpu else {}
        found[str(gpu["uuid"])] = Device(
            uuid=Uuid(str(gpu["uuid"])), index=0, temperature_celsius=temperatures, **values
        )
    return found
