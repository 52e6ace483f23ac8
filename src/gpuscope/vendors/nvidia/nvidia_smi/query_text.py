"""Parses the indented text of `nvidia-smi -q`, for values that no CSV column has.

Per GPU, by PCI address: brand, architecture, minor number, BAR1, temperature limits, PCIe replays; its MIG
devices with instance ids and memory; every process with its instance. The text has no UUIDs of MIG devices
(`-L` has them). Its PCIe throughput is not read: the driver measured it over 20 ms, and the text is up to a
minute old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Device, Instance, Maybe, Pid, Process, Uuid
from gpuscope.vendors.nvidia.nvidia_smi.cells import field_of, put, split_line, to_number, to_text
from gpuscope.vendors.nvidia.nvidia_values import make_instance

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*\Z")

_TEXTS: Final = {
    "Product Brand": "brand",
    "Product Architecture": "architecture",
    "Board Part Number": "board_part_number",
}
_NUMBERS: Final = {  # path in the text -> reading, unit
    "BAR1 Memory Usage/Total": ("bar1_total_bytes", "MiB"),
    "BAR1 Memory Usage/Used": ("bar1_used_bytes", "MiB"),
    "PCI/Replays Since Reset": ("pcie_replays", ""),
    "Max Clocks/Video": ("clock_max_hertz.video", "MHz"),
    "Temperature/GPU Shutdown Temp": ("temperature_threshold_celsius.shutdown", "C"),
    "Temperature/GPU Slowdown Temp": ("temperature_threshold_celsius.slowdown", "C"),
    "Temperature/GPU Max Operating Temp": ("temperature_threshold_celsius.gpu_max", "C"),
    "Temperature/Memory Max Operating Temp": ("temperature_threshold_celsius.memory_max", "C"),
}
_MIG_NUMBERS: Final = {
    "FB Memory Usage/Total": ("memory_total_bytes", "MiB"),
    "FB Memory Usage/Reserved": ("memory_reserved_bytes", "MiB"),
    "FB Memory Usage/Used": ("memory_used_bytes", "MiB"),
    "FB Memory Usage/Free": ("memory_free_bytes", "MiB"),
    "BAR1 Memory/Total": ("bar1_total_bytes", "MiB"),
    "BAR1 Memory/Used": ("bar1_used_bytes", "MiB"),
    "BAR1 Memory Usage/Total": ("bar1_total_bytes", "MiB"),
    "BAR1 Memory Usage/Used": ("bar1_used_bytes", "MiB"),
}


@dataclass(frozen=True, slots=True)
class LoggedMig:
    index: int
    gpu_instance: int
    compute_instance: int
    readings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoggedProcess:
    pid: int
    kind: str  # C, G, C+G, M+C
    name: str
    memory: str
    gpu_instance: Maybe[int]
    compute_instance: Maybe[int]


@dataclass(frozen=True, slots=True)
class LoggedGpu:
    readings: Mapping[str, Any]
    migs: tuple[LoggedMig, ...]
    processes: tuple[LoggedProcess, ...]


@dataclass(slots=True)
class _Block:
    """The section of one GPU, split into the GPU's own lines, MIG devices and processes."""

    own: dict[str, str] = field(default_factory=dict)
    migs: list[dict[str, str]] = field(default_factory=list)
    processes: list[dict[str, str]] = field(default_factory=list)
    instance: dict[str, str] = field(default_factory=dict)  # the ids that precede each process

    def take(self, headings: list[str], key: str, value: str) -> None:
        if headings[:1] == ["MIG Device"]:
            # "Shared FB Memory Usage" on some drivers, "FB Memory Usage" on others.
            path = "/".join([*(name.removeprefix("Shared ") for name in headings[1:]), key])
            if self.migs:
                self.migs[-1].setdefault(path, value)
        elif headings[:1] == ["Processes"]:
            self._take_process(key, value)
        else:
            self.own.setdefault("/".join([*headings, key]), value)

    def _take_process(self, key: str, value: str) -> None:
        if key in ("GPU instance ID", "Compute instance ID"):
            self.instance[key] = value
        elif key == "Process ID":
            self.processes.append({key: value, **self.instance})
            self.instance = {}
        elif self.processes:
            self.processes[-1].setdefault(key, value)


def parse_query_text(text: str) -> dict[str, LoggedGpu]:
    """GPUs by upper-case PCI address. The first section of an address wins: a process name may imitate one."""
    return {address: _to_gpu(block) for address, block in _blocks(text.split("\n")).items()}


def _blocks(lines: Iterable[str]) -> dict[str, _Block]:
    blocks: dict[str, _Block] = {}
    block: _Block | None = None
    headings: list[tuple[int, str]] = []
    for line in lines:
        words = line.strip()
        if not words:
            continue
        if (gpu := _GPU.match(line)) is not None:
            address = gpu[1].upper()
            block = None if address in blocks else blocks.setdefault(address, _Block())
            headings = []
        elif block is not None:
            depth = len(line) - len(line.lstrip())
            while headings and headings[-1][0] >= depth:
                headings.pop()
            key, colon, value = words.partition(": ")
            if colon or words.endswith(":"):
                block.take([name for _, name in headings], key.rstrip(" :"), value.strip())
            else:
                headings.append((depth, words))
                if words == "MIG Device" and len(headings) == 1:
                    block.migs.append({})
    return blocks


def _to_gpu(block: _Block) -> LoggedGpu:
    readings = _numbers(block.own, _NUMBERS)
    for key, path in _TEXTS.items():
        put(readings, path, to_text(block.own.get(key, "")))
    minor = to_integer(block.own.get("Minor Number", ""))
    put(readings, "minor_number", minor)
    return LoggedGpu(
        readings=readings,
        migs=tuple(mig for mig in map(_to_mig, block.migs) if mig is not None),
        processes=tuple(process for process in map(_to_process, block.processes) if process is not None),
    )


def _to_mig(values: dict[str, str]) -> LoggedMig | None:
    index, gpu_instance, compute_instance = (
        to_integer(values.get(key, "")) for key in ("Index", "GPU Instance ID", "Compute Instance ID")
    )
    if index is ABSENT or gpu_instance is ABSENT or compute_instance is ABSENT:
        return None
    return LoggedMig(index, gpu_instance, compute_instance, _numbers(values, _MIG_NUMBERS))


def _to_process(values: dict[str, str]) -> LoggedProcess | None:
    pid = to_integer(values["Process ID"])
    if pid is ABSENT:
        return None
    return LoggedProcess(
        pid=pid,
        kind=values.get("Type", ""),
        name=values.get("Name", ""),
        memory=values.get("Used GPU Memory", ""),
        gpu_instance=to_integer(values.get("GPU instance ID", "")),
        compute_instance=to_integer(values.get("Compute instance ID", "")),
    )


def _numbers(values: Mapping[str, str], table: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    readings: dict[str, Any] = {}
    for key, (path, unit) in table.items():
        put(readings, path, to_number(values.get(key, ""), unit))
    return readings


def to_integer(text: str) -> Maybe[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else ABSENT


# MIG instances from two outputs: `-L` has their UUIDs and profiles, `-q` the rest.
#
# The two are joined by the parent GPU and the MIG device's index. An instance in only one of them (created or
# destroyed in between) is left out until the next cycle.

_MIG_GPU = re.compile(r"GPU ([0-9]{1,9}): .*\(UUID: (GPU-[0-9A-Za-z-]+)\)\s*\Z")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+([0-9]{1,9}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)\s*\Z")


@dataclass(frozen=True, slots=True)
class ListedMig:
    index: int
    profile: str
    uuid: Uuid


@dataclass(frozen=True, slots=True)
class ListedGpu:
    index: int
    migs: tuple[ListedMig, ...]


def parse_list(text: str) -> dict[Uuid, ListedGpu]:
    """GPUs of `-L` by UUID, without lost GPUs, for which nvidia-smi prints an error."""
    gpus: dict[Uuid, ListedGpu] = {}
    parent: Uuid | None = None
    for line in text.split("\n"):
        if (gpu := _MIG_GPU.match(line)) is not None:
            parent = Uuid(gpu[2])
            gpus.setdefault(parent, ListedGpu(int(gpu[1]), ()))
        elif parent is not None and (mig := _MIG.match(line)) is not None:
            known = gpus[parent]
            gpus[parent] = ListedGpu(known.index, (*known.migs, ListedMig(int(mig[2]), mig[1], Uuid(mig[3]))))
    return gpus


def to_instances(listed: Sequence[ListedMig], logged: Sequence[LoggedMig]) -> tuple[Instance, ...]:
    by_index = {mig.index: mig for mig in listed}
    return tuple(
        make_instance(
            uuid=by_index[mig.index].uuid,
            gpu_instance=mig.gpu_instance,
            compute_instance=mig.compute_instance,
            profile=by_index[mig.index].profile,
            **mig.readings,
        )
        for mig in logged
        if mig.index in by_index
    )


# Processes on the GPUs from `--query-compute-apps` or, with MIG, from `-q`, which names the instance.
#
# A process name is free text and may contain commas, so a row is parsed from both ends and the rest is the
# name. A row with an unknown GPU or a PID that is not a number (`[Insufficient Permissions]`) is left out,
# because its owner cannot be found. Memory is absent if the driver does not report it.

COMPUTE_APPS_FIELDS = "gpu_uuid,pid,process_name,used_gpu_memory"
_COLUMNS = COMPUTE_APPS_FIELDS.split(",")
_KIND = re.compile(r"[MCG](?:\+[MCG])*\Z")  # M+C is an MPS client, C+G a desktop that also computes


def parse_compute_apps(text: str, known: Iterable[Uuid]) -> tuple[Process, ...]:
    """Raises SourceError if `text` contains no table, which differs from a table without rows."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if [field_of(header) for header in split_line(line)] == _COLUMNS:
            gpus = frozenset(known)
            found = (_row_to_process(row, gpus) for row in lines[number + 1 :])
            return tuple(process for process in found if process is not None)
    raise SourceError("nvidia-smi --query-compute-apps printed no table")


def _row_to_process(line: str, known: frozenset[Uuid]) -> Process | None:
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
