"""Processes on the GPUs from `--query-compute-apps` or, with MIG, from `-q`, which names the instance.

A process name is free text and may contain commas, so a row is parsed from both ends and the rest is the name.
A row with an unknown GPU or a PID that is not a number (`[Insufficient Permissions]`) is left out, because its
owner cannot be found. Memory is absent if the driver does not report it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Device, Maybe, Pid, Process, Uuid
from gpuscope.vendors.nvidia.nvidia_smi.cells import field_of, split_line, to_number, to_text
from gpuscope.vendors.nvidia.nvidia_smi.query_text import LoggedGpu, LoggedProcess, to_integer

COMPUTE_APPS_FIELDS = "gpu_uuid,pid,process_name,used_gpu_memory"
_COLUMNS = COMPUTE_APPS_FIELDS.split(",")
_KIND = re.compile(r"[MCG](?:\+[MCG])*\Z")  # M+C is an MPS client, C+G a desktop that also computes


def parse_compute_apps(text: str, known: Iterable[Uuid]) -> tuple[Process, ...]:
    """Raises SourceError if `text` contains no table, which differs from a table without rows."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if [field_of(header) for header in split_line(line)] == _COLUMNS:
            gpus = frozenset(known)
            found = (_to_process(row, gpus) for row in lines[number + 1 :])
            return tuple(process for process in found if process is not None)
    raise SourceError("nvidia-smi --query-compute-apps printed no table")


def _to_process(line: str, known: frozenset[Uuid]) -> Process | None:
    cells = line.split(",")
    if len(cells) < len(_COLUMNS):
        return None
    uuid, pid = Uuid(cells[0].strip()), to_integer(cells[1].strip())
    if uuid not in known or pid is ABSENT:
        return None
    name = ",".join(cells[2:-1]).strip()
    return Process(
        pid=Pid(pid),
        gpu_uuid=uuid,
        command=short_command(name),
        driver_name=name,
        memory_bytes=to_number(cells[-1].strip(), "MiB"),
    )


def logged_processes(devices: Iterable[Device], logged: Mapping[str, LoggedGpu]) -> tuple[Process, ...]:
    found = []
    for device in devices:
        address = device.pci_bus_id
        gpu = logged.get(address.upper()) if address is not ABSENT else None
        found += [_from_log(device, process) for process in (gpu.processes if gpu is not None else ())]
    return tuple(found)


def _from_log(device: Device, process: LoggedProcess) -> Process:
    instance: Maybe[Uuid] = ABSENT
    for candidate in device.instances:
        if candidate.ids == (process.gpu_instance, process.compute_instance):
            instance = candidate.uuid
    return Process(
        pid=Pid(process.pid),
        gpu_uuid=device.uuid,
        instance_uuid=instance,
        kind=process.kind if _KIND.match(process.kind) else "C",
        command=short_command(process.name),
        driver_name=process.name,
        memory_bytes=to_number(process.memory, "MiB"),
    )


def short_command(name: str) -> Maybe[str]:
    """`python3` of `/usr/bin/python3 train.py`: arguments may contain secrets and are not exported."""
    text = to_text(name)
    if text is ABSENT:
        return ABSENT
    return PurePosixPath(text.split()[0]).name or text.split()[0]
