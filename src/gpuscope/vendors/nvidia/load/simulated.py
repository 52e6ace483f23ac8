"""A load on the simulated GPUs of a demo server: the server simulates, this follows what its live view shows.

A simulated GPU may also work for its own simulated job, so a metric may show more than the load alone. PCIe
traffic is not in the live view; it is read with PromQL, some seconds after the load has begun, because the
server stores a sample every few seconds only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpuscope.base.errors import GpuscopeError
from gpuscope.model.readings import ABSENT, Device, Instance, Uuid
from gpuscope.vendors.nvidia.load.comparison import LoadedGpu
from gpuscope.vendors.nvidia.load.device_process import DeviceLoad
from gpuscope.vendors.nvidia.load.duty_cycle import Progress
from gpuscope.vendors.nvidia.nvidia_values import make_device

LIVE_KEYS = {"utilization_ratio": "busy", "power_watts": "power"}
LIVE_ENGINES = ("sm", "tensor", "dram")

STORED_AFTER_SECONDS: Final = 7.0
"""Older answers may hold a sample from before the load: `up` stores one every 5 s."""
TRAFFIC_QUERY: Final = '{__name__=~"gpuscope_gpu_(profiled_)?pcie_bytes_per_second"}'

Show = Callable[[float, LoadedGpu, Device | Instance | None], None]


def loaded_gpus(answer: Any) -> list[LoadedGpu]:
    """The GPUs that `POST /api/demo/load` names."""
    try:
        return [
            LoadedGpu(
                str(gpu["gpu"]),
                str(gpu["uuid"]),
                str(gpu.get("model", "")) or ABSENT,
                is_shared=True,
                simulated_bytes_per_second=float(gpu.get("bytes_per_second", 0.0)),
            )
            for gpu in answer["gpus"]
        ]
    except (TypeError, KeyError, AttributeError, ValueError):
        raise GpuscopeError("the server's answer names no GPU; is it a `gpuscope up --demo`?") from None


def follow_demo_load(
    gpus: Sequence[LoadedGpu],
    load: DeviceLoad,
    read_live: Callable[[], Any],
    read_traffic: Callable[[], Any],
    show: Show,
    wait: Callable[[float], object],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Each second until the load has ended."""
    began_at = monotonic()
    while (elapsed := monotonic() - began_at) < load.duration:
        wait(min(1.0, load.duration - elapsed))
        elapsed = min(load.duration, monotonic() - began_at)
        copies = any(gpu.simulated_bytes_per_second for gpu in gpus)
        traffic = read_traffic() if copies and elapsed >= STORED_AFTER_SECONDS else None
        readings = _readings(read_live(), _traffic(traffic))
        for gpu in gpus:
            amount = elapsed * gpu.simulated_bytes_per_second
            gpu.progress.append(Progress(elapsed, amount, elapsed * load.target))
            reading = readings.get(gpu.uuid)
            if reading is not None:
                gpu.samples.append((elapsed, reading))
            show(elapsed, gpu, reading)


def _traffic(answer: Any) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """By UUID, reading and direction, from the answer to TRAFFIC_QUERY."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for series in answer["data"]["result"] if answer else ():
        labels = series["metric"]
        name = labels["__name__"].removeprefix("gpuscope_gpu_")
        rates = found.setdefault(labels["uuid"], {}).setdefault(name, {})
        rates[labels["direction"]] = float(series["value"][1])
    return found


def _readings(live: Any, traffic: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Mapping[str, Device]:
    """By UUID; what the live view does not show is absent."""
    readings = {}
    for gpu in live.get("gpus", ()) if isinstance(live, dict) else ():
        values: dict[str, Any] = {name: float(gpu[key]) for name, key in LIVE_KEYS.items() if key in gpu}
        temperatures = {"gpu": float(gpu["temperature"])} if "temperature" in gpu else {}
        uuid = str(gpu["uuid"])
        links: dict[str, Any] = dict(traffic.get(uuid, {}))
        engines = {engine: float(gpu[engine]) for engine in LIVE_ENGINES if engine in gpu}
        readings[uuid] = make_device(
            uuid=Uuid(uuid),
            index=0,
            temperature_celsius=temperatures,
            engine_active_ratio=engines,
            **values,
            **links,
        )
    return readings
