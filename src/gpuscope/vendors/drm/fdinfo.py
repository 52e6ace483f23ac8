"""Parses `/proc/PID/fdinfo/FD` of an open file of `/dev/dri`: memory and engine time of one client of a card.

The keys are those of the kernel's drm-usage-stats document. A region without a unit is in bytes. Memory is what
is resident; older kernels write it as `drm-memory-REGION`. amdgpu of kernels 5.14 to 5.18 has keys of its own
and no number of the client; its address space (pasid) stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_ENGINES: Final = 32
MAX_REGIONS: Final = 32

_UNITS: Final = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "kb": 1024}
_MEMORY: Final = ("resident", "memory", "total")
"""The first of them that a region has is its size."""
_OLD_REGIONS: Final = {"vram mem": "vram", "gtt mem": "gtt", "cpu mem": "cpu"}
_MAX_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DrmClient:
    """One client. Forks and duplicated files share it: each is to be counted once."""

    driver: str
    pdev: str
    """The PCI address: `0000:c1:00.0`."""
    client_id: int
    engine_ns: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds, by engine; empty for ROCm, whose work does not go through these engines."""
    engine_capacity: Mapping[str, int] = field(default_factory=dict)
    """How many engines of a kind there are, if more than one."""
    engine_cycles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Cycles of the client and of the clock, by engine; of drivers that count those."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By region: vram, gtt, cpu."""

    @property
    def key(self) -> tuple[str, int]:
        return self.pdev, self.client_id


def parse_fdinfo(text: str) -> DrmClient | None:
    """None if the file is not that of a card, or does not say which client it is."""
    values = _values(text)
    if "drm-driver" not in values:
        return _parse_old(values)
    pdev, client = values.get("drm-pdev", ""), _number(values.get("drm-client-id", ""))
    if not pdev or client is None:
        return None
    return DrmClient(
        driver=values["drm-driver"],
        pdev=pdev,
        client_id=client,
        engine_ns=_numbers(values, "drm-engine-", "ns", without="capacity-"),
        engine_capacity=_numbers(values, "drm-engine-capacity-", ""),
        engine_cycles=_cycles(values),
        memory_bytes=_memory(values),
    )


def _values(text: str) -> dict[str, str]:
    """The first value of a key counts: a name that a client has chosen comes after what the kernel says."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key, value.strip())
    return values


def _parse_old(values: Mapping[str, str]) -> DrmClient | None:
    pasid = _number(values.get("pasid", ""))
    if "pdev" not in values or pasid is None or "vram mem" not in values:
        return None
    sizes = {region: _size(values.get(key, "")) for key, region in _OLD_REGIONS.items()}
    memory = {region: size for region, size in sizes.items() if size is not None}
    return DrmClient(driver="amdgpu", pdev=values["pdev"], client_id=pasid, memory_bytes=memory)


def _numbers(values: Mapping[str, str], start: str, unit: str, without: str = "\0") -> dict[str, int]:
    numbers: dict[str, int] = {}
    for key, value in values.items():
        name = key.removeprefix(start)
        if name != key and not name.startswith(without) and len(numbers) < MAX_ENGINES:
            digits, _, written = value.partition(" ")
            number = _number(digits)
            if number is not None and written.strip() == unit:
                numbers[name] = number
    return numbers


def _cycles(values: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    own = _numbers(values, "drm-cycles-", "")
    total = _numbers(values, "drm-total-cycles-", "")
    return {engine: (cycles, total[engine]) for engine, cycles in own.items() if engine in total}


def _memory(values: Mapping[str, str]) -> dict[str, int]:
    memory: dict[str, int] = {}
    for kind in _MEMORY:
        start = f"drm-{kind}-"
        for key, value in values.items():
            region = key.removeprefix(start)
            if region != key and not region.startswith("cycles-") and len(memory) < MAX_REGIONS:
                size = _size(value)
                if size is not None:
                    memory.setdefault(region, size)
    return memory


def _size(value: str) -> int | None:
    digits, _, unit = value.strip().partition(" ")
    number, factor = _number(digits), _UNITS.get(unit.strip().lower())
    return None if number is None or factor is None else number * factor


def _number(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS else None
