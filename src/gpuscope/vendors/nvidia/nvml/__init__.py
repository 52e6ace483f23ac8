"""NVML, NVIDIA's driver library, read through `nvidia-ml-py`. The source that most machines use.

Output: devices, MIG instances, processes, profiling and XIDs. Every number can be absent: each call can be
refused, fail or hang without affecting the others (`driver_calls.py`, `job_runner.py`). The driver's
utilisation is a mean over its last sample period, so busy seconds come from the driver's sample buffer
(`samples.py`).
"""

from __future__ import annotations

import logging
from functools import cache

from gpuscope.base.settings import Settings
from gpuscope.model.source import Source, SourceSpec

log = logging.getLogger("gpuscope.source")


def open_nvml(settings: Settings) -> Source:
    from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
    from gpuscope.vendors.nvidia.nvml.tiers import plan_tiers

    tier_plan = plan_tiers(settings.dcgm_fields, settings.dcgm_interval)
    source = NvmlSource(
        quick_start=True,
        reading_seconds=max(0.5, 0.8 * settings.interval),
        stale_seconds=SOURCE.deadline_seconds(settings),
        tier_plan=tier_plan,
    )
    for cost in tier_plan.costs():
        warn_once(f"source nvml: {cost}, now every {settings.interval:g} s and GPU on request")
    return source


@cache
def warn_once(text: str) -> None:
    """Logs each text once per process: the source is opened again after each failure."""
    log.warning("%s", text)


SOURCE = SourceSpec(name="nvml", summary="reads the NVIDIA driver through its library, NVML", open=open_nvml)
