"""How the collection itself does, in nvidia_gpu_exporter's terms, and which source that is told of.

Failures and success are always there; exit code and duration after a first attempt, the timestamp after a
first success. Where nvidia-smi is not the source, NVML's return code stands in place of the exit code.
"""

from __future__ import annotations

from gpuscope.metrics.nvidia_smi.collected import Collected
from gpuscope.metrics.nvidia_smi.naming import PREFIX
from gpuscope.readings import ABSENT, Snapshot, SourceStatus

COMMAND_SOURCE = "nvidia-smi"
DRIVER_SOURCES = ("nvml", "demo", "replay", "dcgm")


def backing_source(snapshot: Snapshot) -> SourceStatus | None:
    """The source that the devices come from, or the one that should give them."""
    by_name = {status.name: status for status in snapshot.sources}
    if any(device.smi_cells for device in snapshot.devices):
        return by_name.get(COMMAND_SOURCE)
    in_order = [by_name[name] for name in (*DRIVER_SOURCES, COMMAND_SOURCE) if name in by_name]
    working = [status for status in in_order if status.up]
    if working:
        return working[0]
    return by_name.get(COMMAND_SOURCE) or (in_order[0] if in_order else None)


def runs_the_command(snapshot: Snapshot, status: SourceStatus | None) -> bool:
    if status is None:
        return any(device.smi_cells for device in snapshot.devices)
    return status.name == COMMAND_SOURCE


def add_health(collected: Collected, status: SourceStatus | None, *, command: bool) -> None:
    failed = 0 if status is None else status.failed_reads
    success = status is not None and status.up
    collected.add(PREFIX + "failed_scrapes_total", "Number of failed collections", failed, kind="counter")
    collected.add(
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
        collected.add(PREFIX + name, help_text, status.code)
    if status.duration_seconds is not ABSENT:
        name = PREFIX + "last_collect_duration_seconds"
        collected.add(name, "Duration of the most recent collection", status.duration_seconds)
    if status.last_success_at is not ABSENT:
        collected.add(
            PREFIX + "last_collect_success_timestamp_seconds",
            "Unix timestamp of the most recent successful collection",
            int(status.last_success_at),
        )
