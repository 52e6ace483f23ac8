"""Renders the table of `gpuscope snapshot`: GPUs and MIG instances with their processes and allocations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.cli.terminal import (
    BOLD,
    DIM,
    RED,
    YELLOW,
    bytes_text,
    duration_text,
    paint,
    printable,
    render_table,
)
from gpuscope.readings import (
    ABSENT,
    IDLE,
    Allocation,
    Device,
    Maybe,
    MigInstance,
    Owner,
    Process,
    Snapshot,
    Uuid,
    unit_uuid,
)

DEVICE_HEAD = ("GPU", "MODEL", "BUSY", "MEMORY", "POWER", "TEMP")
PROCESS_HEAD = ("TYPE", "PID", "USER", "POD/JOB", "COMMAND", "HOLDS", "SM", "STATE", "FOR")
HEAD = (*DEVICE_HEAD, *PROCESS_HEAD)
RIGHT = ("BUSY", "MEMORY", "POWER", "TEMP", "PID", "HOLDS", "SM", "FOR")

Cells = tuple[str, ...]


def render(snapshot: Snapshot, colour: bool) -> Iterator[str]:
    driver = _text(snapshot.driver.driver_version)
    title = f"{printable(snapshot.node)}  driver {driver}  {len(snapshot.devices)} GPUs"
    if snapshot.simulated:
        title += "  SIMULATED"
    yield paint(title, BOLD, colour)
    if snapshot.expected_gpus is not ABSENT and snapshot.expected_gpus > len(snapshot.devices):
        visible = f"{len(snapshot.devices)} of {snapshot.expected_gpus} GPUs visible"
        missing = f"{visible}; run `gpuscope doctor` for the reason"
        yield paint(missing, YELLOW, colour)
    rows, lost = [], []
    for device in snapshot.devices:
        device_rows = list(_device_rows(device, snapshot))
        rows += device_rows
        lost += [device.lost] * len(device_rows)
    head, *lines = render_table(HEAD, rows, RIGHT)
    yield paint(head, DIM, colour)
    for line, is_lost in zip(lines, lost, strict=True):
        yield paint(line, RED, colour) if is_lost else line


def _device_rows(device: Device, snapshot: Snapshot) -> Iterator[Cells]:
    """One row per process of the GPU or of each of its instances; at least one row for each."""
    if not device.instances:
        yield from _unit_rows(_device_cells(device), device.uuid, snapshot, quiet=device.lost)
        return
    # Processes on the GPU that belong to no visible instance appear in the GPU's own rows.
    yield from _unit_rows(_device_cells(device), device.uuid, snapshot, quiet=True)
    for instance in device.instances:
        yield from _unit_rows(_instance_cells(device, instance), instance.uuid, snapshot)


def _unit_rows(unit_cells: Cells, uuid: Uuid, snapshot: Snapshot, quiet: bool = False) -> Iterator[Cells]:
    rows = [_process_cells(process, snapshot) for process in _processes_on(uuid, snapshot)]
    rows += [_unused_cells(allocation) for allocation in _unused_on(uuid, snapshot)]
    if not rows:
        label = "" if quiet or snapshot.processes is ABSENT else "free"
        rows = [(label, *("",) * (len(PROCESS_HEAD) - 1))]
    for number, row in enumerate(rows):
        yield (*(unit_cells if number == 0 else ("",) * len(DEVICE_HEAD)), *row)


def _processes_on(uuid: Uuid, snapshot: Snapshot) -> Sequence[Process]:
    if snapshot.processes is ABSENT:
        return ()
    processes = [process for process in snapshot.processes if uuid == unit_uuid(process)]
    return sorted(processes, key=lambda p: 0.0 if p.memory_bytes is ABSENT else -p.memory_bytes)


def _unused_on(uuid: Uuid, snapshot: Snapshot) -> Sequence[Allocation]:
    allocations = snapshot.ownership.allocations
    if allocations is ABSENT:
        return ()
    return [allocation for allocation in allocations if not allocation.used and uuid == unit_uuid(allocation)]


def _device_cells(device: Device) -> Cells:
    temperature = device.temperature_celsius.get("gpu")
    return (
        str(device.index),
        printable(_text(device.model), 30) + (" LOST" if device.lost else ""),
        _percent(device.utilization_ratio),
        _memory(device.memory_used_bytes, device.memory_total_bytes),
        "-" if device.power_watts is ABSENT else f"{device.power_watts:.0f} W",
        "-" if temperature is None else f"{temperature:.0f} °C",
    )


def _instance_cells(device: Device, instance: MigInstance) -> Cells:
    return (
        f"{device.index}_{instance.gpu_instance}_{instance.compute_instance}",
        f"MIG {printable(_text(instance.profile), 20)}",
        _percent(instance.graphics_engine_active_ratio),
        _memory(instance.memory_used_bytes, instance.memory_total_bytes),
        "",
        "",
    )


def _memory(used: Maybe[float], total: Maybe[float]) -> str:
    return "-" if used is ABSENT or total is ABSENT else f"{bytes_text(used)} / {bytes_text(total)}"


def _process_cells(process: Process, snapshot: Snapshot) -> Cells:
    state = process.state
    if process.state == IDLE and process.idle_since is not ABSENT:
        state = f"idle {duration_text(snapshot.taken_at - process.idle_since)}"
    return (
        process.kind,
        str(process.pid),
        printable(_text(process.owner.user), 20),
        printable(_owner_text(process.owner), 60),
        printable(_text(process.command), 40),
        "-" if process.memory_bytes is ABSENT else bytes_text(process.memory_bytes),
        _percent(process.sm_ratio),
        state,
        "-" if process.started_at is ABSENT else duration_text(snapshot.taken_at - process.started_at),
    )


def _owner_text(owner: Owner) -> str:
    """The pod, or the job, or the pod's UID if its name is unknown, or the container."""
    if owner.pod is not ABSENT:
        return owner.pod if owner.namespace is ABSENT else f"{owner.namespace}/{owner.pod}"
    if owner.job is not ABSENT:
        return f"job {owner.job}"
    if owner.pod_uid is not ABSENT:
        return f"pod {owner.pod_uid}"
    if owner.container is not ABSENT:
        return f"container {owner.container}"
    return "-" if owner.container_id is ABSENT else f"container {owner.container_id[:12]}"


def _unused_cells(allocation: Allocation) -> Cells:
    where = f"job {allocation.job}" if allocation.job is not ABSENT else "-"
    if allocation.pod is not ABSENT:
        namespace = "" if allocation.namespace is ABSENT else allocation.namespace
        where = f"{namespace}/{allocation.pod}"
    return ("", "", "", printable(where, 60), "allocated, unused", "", "", "", "")


def _text(value: Maybe[str]) -> str:
    return "-" if value is ABSENT else value


def _percent(ratio: Maybe[float]) -> str:
    return "-" if ratio is ABSENT else f"{ratio * 100:.0f} %"
