"""nvidia_gpu_exporter's metrics about its own collection, and the source they describe.

Failures and success are always exported, exit code and duration after the first attempt, the timestamp after
the first success. If nvidia-smi is not the source, NVML's return code replaces the exit code.
"""

from __future__ import annotations

from gpuscope.model.readings import ABSENT, Snapshot, SourceStatus
from gpuscope.vendors.nvidia.families.nvidia_smi.go_registry import GoRegistry
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import PREFIX
from gpuscope.vendors.nvidia.nvidia_values import own

COMMAND_SOURCE = "nvidia-smi"
DRIVER_SOURCES = ("nvml", "demo", "replay", "dcgm")


def runs_the_command(snapshot: Snapshot, backend: str) -> bool:
    """Whether the backend is `exec`; without a backend option, the source of the devices decides."""
    if backend:
        return backend == "exec"
    if snapshot.devices:
        return any(own(device).smi_cells for device in snapshot.devices)
    up = {status.name: status.up for status in snapshot.sources}
    return COMMAND_SOURCE in up and not any(up.get(name) for name in DRIVER_SOURCES)


def backing_source(snapshot: Snapshot, *, command: bool) -> SourceStatus | None:
    """The source of the devices, or the source that should read them."""
    by_name = {status.name: status for status in snapshot.sources}
    if command:
        return by_name.get(COMMAND_SOURCE)
    drivers = [by_name[name] for name in DRIVER_SOURCES if name in by_name]
    return next((status for status in drivers if status.up), drivers[0] if drivers else None)


def add_health(registry: GoRegistry, status: SourceStatus | None, *, command: bool) -> None:
    failed = 0 if status is None else status.failed_reads
    success = status is not None and status.up
    registry.add(PREFIX + "failed_scrapes_total", "Number of failed collections", failed, kind="counter")
    registry.add(
        PREFIX + "last_collect_success",
        "Whether the most recent collection succeeded (1) or not (0)",
        float(success),
    )
    if status is None:
        return
    if status.code is not ABSENT:
        if command:
            name, help_text = "command_exit_code", "Exit code of the most recent nvidia-smi run"
        else:
            name, help_text = (
                "nvml_return_code",
                "NVML return code of the most recent collection (0 = success)",
            )
        registry.add(PREFIX + name, help_text, status.code)
    if status.duration_seconds is not ABSENT:
        name = PREFIX + "last_collect_duration_seconds"
        registry.add(name, "Duration of the most recent collection", status.duration_seconds)
    if status.last_success_at is not ABSENT:
        registry.add(
            PREFIX + "last_collect_success_timestamp_seconds",
            "Unix timestamp of the most recent successful collection",
            int(status.last_success_at),
        )
