from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.sources.host.proc_files import (
    DISK_FIELDS,
    NETWORK_FIELDS,
    parse_diskstats,
    parse_loadavg,
    parse_meminfo,
    parse_net_dev,
    parse_stat,
    parse_udev,
    parse_vmstat,
    valid_text,
)

COUNTS = st.integers(0, 2**64 - 1)
PARSERS: list[Callable[[str], object]] = [
    parse_stat,
    parse_loadavg,
    parse_meminfo,
    parse_vmstat,
    lambda text: list(parse_diskstats(text)),
    parse_net_dev,
    parse_udev,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=200) | st.text(st.sampled_from("cpu0 btime:kB()|-+.eE1\n\t "), max_size=200))
def test_any_text_is_read_or_refused(parse: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text)


@given(ticks=st.lists(st.lists(COUNTS, min_size=10, max_size=10), min_size=1, max_size=4), btime=COUNTS)
def test_stat_is_parsed_exactly(ticks: list[list[int]], btime: int) -> None:
    lines = [f"cpu{n} {' '.join(map(str, cpu))}" for n, cpu in enumerate(ticks)]
    stat = parse_stat("\n".join(["cpu  1 2 3", *lines, "intr 7 1 2", f"btime {btime}", ""]))
    assert stat.cpu_ticks == {str(n): list(map(float, cpu)) for n, cpu in enumerate(ticks)}
    assert stat.boot_time_seconds == float(btime)
    assert stat.kernel == {"intr_total": 7.0}


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Za-z0-9_]{0,10}", fullmatch=True), COUNTS, min_size=1))
def test_every_line_of_meminfo_is_parsed(memory: dict[str, int]) -> None:
    text = "".join(f"{name}:{number:>15} kB\n{name}(x):  1\n" for name, number in memory.items())
    expected = {f"{name}_bytes": float(number) * 1024 for name, number in memory.items()}
    assert parse_meminfo(text) == expected | {f"{name}_x": 1.0 for name in memory}


# What the kernel lets an interface be called: no blank, no slash, no colon, at most 15 bytes.
INTERFACES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Z", "C"), exclude_characters="/:"), min_size=1
)


@given(st.dictionaries(INTERFACES, st.lists(COUNTS, min_size=16, max_size=16)))
def test_every_interface_of_net_dev_is_parsed(networks: dict[str, list[int]]) -> None:
    lines = [f"{name:>6}: {' '.join(map(str, numbers))}" for name, numbers in networks.items()]
    parsed = parse_net_dev("\n".join(["Inter-|", " face |", *lines, ""]))
    assert parsed == {
        name: dict(zip(NETWORK_FIELDS, map(float, numbers), strict=True)) for name, numbers in networks.items()
    }


@given(st.lists(COUNTS, min_size=11, max_size=20))
def test_diskstats_reads_as_many_columns_as_there_are(numbers: list[int]) -> None:
    (disk,) = parse_diskstats(f"   8       0 sda {' '.join(map(str, numbers))}\n")
    assert (disk.name, disk.major, disk.minor) == ("sda", "8", "0")
    assert list(disk.values) == [suffix for suffix, _ in DISK_FIELDS[: len(numbers)]]
    assert disk.values["read_bytes_total"] == float(numbers[2]) * 512


@pytest.mark.parametrize("name", ["sda1", "vdb12", "nvme0n1p3", "loop0", "ram1", "zram0", "fd0", "xvda1"])
def test_partitions_and_virtual_disks_are_left_out(name: str) -> None:
    assert list(parse_diskstats(f"8 0 {name} " + "1 " * 17)) == []


@pytest.mark.parametrize("name", ["sda", "nvme0n1", "dm-0", "md127", "zd0", "mmcblk0p1", "sda1x"])
def test_disks_are_kept(name: str) -> None:
    assert [disk.name for disk in parse_diskstats(f"8 0 {name} " + "1 " * 17)] == [name]


@given(st.binary(max_size=50))
def test_a_label_is_valid_utf8_for_any_bytes(raw: bytes) -> None:
    label = valid_text(raw.decode("utf-8", "surrogateescape"))
    assert label.encode("utf-8").decode("utf-8") == label
    assert "\ufffd\ufffd" not in label or b"\xef\xbf\xbd" in raw
