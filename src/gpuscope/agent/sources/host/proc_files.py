"""Parses files of /proc with node_exporter's names, units and exclusions.

Input: text; output: mappings by metric suffix. A line that cannot be parsed is skipped; a file in an unexpected
format raises ValueError. Lines end at \\n only: `splitlines` would also split a hostile name at a vertical tab
or U+2028.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe

TICKS_PER_SECOND = 100.0  # USER_HZ: the unit of /proc/stat, independent of the kernel's own timer frequency
CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
KERNEL_COUNTS: Final = {  # key in /proc/stat -> metric without "node_"
    "intr": "intr_total",
    "ctxt": "context_switches_total",
    "processes": "forks_total",
    "procs_running": "procs_running",
    "procs_blocked": "procs_blocked",
}
DISK_FIELDS: Final = (  # in /proc/diskstats' order: metric suffix, factor to base units
    ("reads_completed_total", 1.0),
    ("reads_merged_total", 1.0),
    ("read_bytes_total", 512.0),
    ("read_time_seconds_total", 0.001),
    ("writes_completed_total", 1.0),
    ("writes_merged_total", 1.0),
    ("written_bytes_total", 512.0),
    ("write_time_seconds_total", 0.001),
    ("io_now", 1.0),
    ("io_time_seconds_total", 0.001),
    ("io_time_weighted_seconds_total", 0.001),
    ("discards_completed_total", 1.0),
    ("discards_merged_total", 1.0),
    ("discarded_sectors_total", 1.0),
    ("discard_time_seconds_total", 0.001),
    ("flush_requests_total", 1.0),
    ("flush_requests_time_seconds_total", 0.001),
)
NETWORK_FIELDS: Final = tuple(  # in /proc/net/dev's order
    f"{direction}_{field}_total"
    for direction, fields in (
        ("receive", "bytes packets errs drop fifo frame compressed multicast"),
        ("transmit", "bytes packets errs drop fifo colls carrier compressed"),
    )
    for field in fields.split()
)

DISKS_EXCLUDED: Final = re.compile(r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+", re.ASCII)
_MEMORY_LINE = re.compile(r"^(\w+)(?:\((\w+)\))?:[ \t]*(\d+)( kB)?$", re.ASCII | re.MULTILINE)
_VMSTAT_LINE = re.compile(r"^((?:oom_kill|pgpg|pswp|pg\w*fault)\w*) (\d+)$", re.ASCII | re.MULTILINE)
_NOT_UTF8 = re.compile("[\udc80-\udcff]+")


def valid_text(text: str) -> str:
    """A label value: each run of bytes that are not UTF-8 becomes one replacement character, as in Go."""
    return text if text.isascii() else _NOT_UTF8.sub("\ufffd", text)


@dataclass(slots=True)
class KernelStat:
    boot_time_seconds: Maybe[float] = ABSENT
    cpu_ticks: dict[str, list[float]] = field(
        default_factory=dict
    )  # by CPU number: the modes, then guest times
    kernel: dict[str, float] = field(default_factory=dict)


def parse_stat(text: str) -> KernelStat:
    stat = KernelStat()
    for line in text.split("\n"):
        word, _, rest = line.partition(" ")
        if word in KERNEL_COUNTS:
            stat.kernel[KERNEL_COUNTS[word]] = float(rest.split(" ", 1)[0])
        elif word == "btime":
            stat.boot_time_seconds = float(rest)
        elif word.startswith("cpu") and word[3:].isdecimal():
            stat.cpu_ticks[word[3:]] = list(map(float, rest.split()))
    if not stat.cpu_ticks:
        raise ValueError("no CPU in /proc/stat")
    return stat


def parse_loadavg(text: str) -> tuple[float, float, float]:
    one, five, fifteen = map(float, text.split()[:3])
    return one, five, fifteen


def parse_meminfo(text: str) -> dict[str, float]:
    """By node_exporter's suffix: `Active(anon): 4 kB` is Active_anon_bytes; a name without unit is kept."""
    memory = {}
    for name, part, number, unit in _MEMORY_LINE.findall(text):
        suffix = f"{name}_{part}" if part else name
        if unit:
            memory[suffix + "_bytes"] = float(number) * 1024.0
        else:
            memory[suffix] = float(number)
    if not memory:
        raise ValueError("no line in /proc/meminfo could be parsed")
    return memory


def parse_vmstat(text: str) -> dict[str, float]:
    return {name: float(number) for name, number in _VMSTAT_LINE.findall(text)}


@dataclass(frozen=True, slots=True)
class DiskStats:
    name: str
    major: str
    minor: str
    values: dict[str, float]


def parse_diskstats(text: str) -> Iterator[DiskStats]:
    """Partitions, RAM and loop devices are left out, as node_exporter does by default."""
    for line in text.split("\n"):
        cells = line.split()
        if len(cells) < 14 or DISKS_EXCLUDED.fullmatch(cells[2]):
            continue
        values = {
            suffix: float(cell) * unit for (suffix, unit), cell in zip(DISK_FIELDS, cells[3:], strict=False)
        }
        yield DiskStats(valid_text(cells[2]), cells[0], cells[1], values)


def parse_net_dev(text: str) -> dict[str, dict[str, float]]:
    networks = {}
    for line in text.split("\n")[2:]:
        name, colon, numbers = line.rpartition(":")
        cells = numbers.split()
        if colon and len(cells) == len(NETWORK_FIELDS):
            networks[valid_text(name.lstrip(" "))] = dict(zip(NETWORK_FIELDS, map(float, cells), strict=True))
    return networks


def parse_udev(text: str) -> dict[str, str]:
    """The device properties of a file in /run/udev/data."""
    lines = (line[2:].partition("=") for line in text.split("\n") if line.startswith("E:"))
    return {name: valid_text(value) for name, _, value in lines}
