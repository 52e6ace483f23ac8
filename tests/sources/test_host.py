from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpuscope.agent.sources.host import (
    STA_NANO,
    TIME_ERROR,
    HostSource,
    MonotonicCpu,
    Timex,
    mounts,
    to_clock_state,
)
from gpuscope.base.errors import SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, HostReading
from gpuscope.model.source import Tier, load_source
from tests.sources.host_tree import HangingStat, HostTree, copy_host_tree

ALL = frozenset(Tier)


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return copy_host_tree(tmp_path)


def read(tree: HostTree) -> HostReading:
    reading = HostSource(tree.settings()).read(ALL)
    assert reading.failures == {}
    assert isinstance(reading.host, HostReading)
    return reading.host


def test_reads_a_whole_machine(tree: HostTree) -> None:
    host = read(tree)
    assert host.boot_time_seconds == 1767225600.0
    assert (host.load1, host.load5, host.load15) == (12.07, 8.5, 3.99)
    assert host.cpu_seconds["0", "user"] == 11763.04
    assert host.cpu_seconds["10", "irq"] == 0.12
    assert host.cpu_guest_seconds["10", "nice"] == 0.07
    assert host.memory["MemTotal_bytes"] == 2113564236 * 1024
    assert host.memory["Active_anon_bytes"] == 20412344 * 1024
    assert host.memory["HugePages_Free"] == 1000
    assert host.kernel["context_switches_total"] == 612344556
    assert host.networks["bond0"]["receive_drop_total"] == 412
    assert host.networks['veth"a\\b']["transmit_packets_total"] == 12
    assert host.uname["domainname"] == "(none)"
    assert host.time_seconds is not ABSENT
    assert abs(host.time_seconds - time.time()) < 60


def test_vmstat_has_node_exporters_fields(tree: HostTree) -> None:
    assert set(read(tree).vmstat) == {
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "pgfault",
        "pgmajfault",
        "oom_kill",
    }


def test_partitions_and_loop_devices_are_no_disks_and_an_old_kernel_has_fewer_numbers(tree: HostTree) -> None:
    host = read(tree)
    assert set(host.disks) == {"nvme0n1", "sda", "dm-0"}
    assert host.disks["nvme0n1"]["read_bytes_total"] == 91234456 * 512
    assert host.disks["nvme0n1"]["flush_requests_total"] == 123445
    assert "discards_completed_total" not in host.disks["sda"]
    assert "discard_time_seconds_total" in host.disks["dm-0"]
    assert "flush_requests_total" not in host.disks["dm-0"]


def test_disk_info_comes_from_udev_if_it_exists(tree: HostTree) -> None:
    info = read(tree).disk_info
    assert info["sda"]["serial"] == "0001"
    assert info["sda"]["rotational"] == "1"
    assert info["nvme0n1"] == {
        "major": "259",
        "minor": "0",
        "model": "",
        "path": "",
        "revision": "",
        "rotational": "0",
        "serial": "",
        "wwn": "",
    }


def test_filesystems_and_those_that_do_not_tell(tree: HostTree) -> None:
    host = read(tree)
    by_mountpoint = {found.mountpoint: found for found in host.filesystems}
    assert set(by_mountpoint) == {
        "/",
        "/run",
        "/scratch",
        "/home",
        "/mnt/with space\tand\\134slash",
        '/quoted"mount',
        "/broken",
    }
    assert by_mountpoint["/home"].read_only
    assert by_mountpoint["/broken"].read_only
    assert not by_mountpoint["/"].read_only
    assert by_mountpoint["/"].device_number == ("259", "2")
    assert by_mountpoint["/"].size_bytes > 0
    assert [(failed.mountpoint, failed.error) for failed in host.filesystem_errors] == [
        ("/gone", "no such file or directory")
    ]


def test_zero_is_zero_and_missing_is_absent(tree: HostTree) -> None:
    for name in ("loadavg", "vmstat", "diskstats", "net/dev", "1/mountinfo"):
        (tree.proc / name).unlink()
    stat = tree.proc / "stat"
    stat.write_text(stat.read_text().replace("btime 1767225600\n", ""))
    (tree.proc / "meminfo").write_text("MemFree:        0 kB\n")
    host = read(tree)
    assert host.load1 is ABSENT
    assert host.boot_time_seconds is ABSENT
    assert host.memory == {"MemFree_bytes": 0.0}
    assert host.kernel["procs_blocked"] == 0.0
    assert host.cpu_seconds["0", "steal"] == 0.0
    assert not host.vmstat
    assert not host.disks
    assert not host.networks
    assert host.filesystems == ()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("stat", "stat"),
        ("meminfo", "meminfo"),
        ("loadavg", "loadavg"),
        ("diskstats", "diskstats"),
        ("net/dev", "net/dev"),
    ],
)
def test_one_broken_file_loses_only_its_own_numbers(tree: HostTree, name: str, part: str) -> None:
    broken = {
        "diskstats": "8 0 sda " + "x " * 20,
        "net/dev": "a\nb\nlo: " + "x " * 16,
        "stat": "cpu0 one two\n",
    }
    (tree.proc / name).write_text(broken.get(name, "\x00 rubbish\n"))
    reading = HostSource(tree.settings()).read(ALL)
    assert reading.failures == {part: 1}
    assert isinstance(reading.host, HostReading)
    if name != "stat":
        assert reading.host.boot_time_seconds == 1767225600.0
    assert len(reading.host.filesystems) == 7


def test_names_that_are_no_utf8_are_read_and_made_valid(tree: HostTree) -> None:
    (tree.proc / "1/mountinfo").write_bytes(
        b"28 1 8:1 / / rw - ext4 /dev/\xff\xfesda rw\n"
        b"29 1 8:2 / /bad\xc3\xff\xffname\xe2\x80\xa8x\x0by rw - ext4 /dev/sdb rw\n"
    )
    (tree.root / "bad\udcc3\udcff\udcffname\u2028x\x0by").mkdir()
    found = read(tree).filesystems
    assert [(f.device, f.mountpoint) for f in found] == [
        ("/dev/\ufffdsda", "/"),
        ("/dev/sdb", "/bad\ufffdname\u2028x\x0by"),
    ]


def test_our_own_mounts_when_those_of_the_first_process_may_not_be_seen(tree: HostTree) -> None:
    (tree.proc / "self").mkdir()
    (tree.proc / "1/mountinfo").rename(tree.proc / "self/mountinfo")
    assert len(read(tree).filesystems) == 7


def test_a_hanging_filesystem_costs_nothing_but_its_own_numbers(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = HangingStat(f"{tree.root}/home", os.statvfs)
    monkeypatch.setattr(mounts.FilesystemSizes.__init__, "__defaults__", (stat, 0.05))
    source = HostSource(tree.settings())
    for _ in range(3):
        host = source.read(ALL).host
        assert isinstance(host, HostReading)
        assert [(failed.mountpoint, failed.error) for failed in host.filesystem_errors] == [
            ("/home", "mountpoint timeout"),
            ("/gone", "no such file or directory"),
        ]
        assert len(host.filesystems) == 6
        assert host.load1 == 12.07
    assert stat.calls.count(f"{tree.root}/home") == 1
    stat.release.set()


def test_no_thread_to_be_had_costs_the_filesystems_alone(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    reading = HostSource(tree.settings()).read(ALL)
    assert reading.failures == {"filesystems": 1}
    assert isinstance(reading.host, HostReading)
    assert reading.host.load1 == 12.07


def test_a_missing_procfs_is_reported_with_the_fix(tmp_path: Path) -> None:
    spec = load_source("host")
    with pytest.raises(SourceMissing, match="--path-procfs"):
        spec.open(Settings(path_procfs=str(tmp_path)))


def test_reads_this_machine() -> None:
    source = load_source("host").open(Settings())
    reading = source.read(ALL)
    source.close()
    assert isinstance(reading.host, HostReading)
    assert reading.host.cpu_seconds
    assert reading.host.memory["MemTotal_bytes"] > 0
    assert reading.host.clock["sync_status"] in (0.0, 1.0)


@pytest.mark.parametrize(
    ("status", "result", "expected"),
    [
        (STA_NANO, 0, {"offset_seconds": -0.0625, "sync_status": 1.0}),
        (0, TIME_ERROR, {"offset_seconds": -62.5, "sync_status": 0.0}),
    ],
)
def test_the_clock_s_offset_is_in_the_unit_that_the_kernel_says(
    status: int, result: int, expected: dict[str, float]
) -> None:
    state = Timex(offset=-62_500_000, maxerror=2_000_000, esterror=500, status=status)
    errors = {"maxerror_seconds": 2.0, "estimated_error_seconds": 0.0005}
    assert to_clock_state(state, result) == {**expected, **errors}


def test_cpu_time_does_not_run_backwards() -> None:
    cpu = MonotonicCpu()
    cpu.advance({"0": [100.0, 0.0, 50.0, 1000.0, 80.0, 0.0, 0.0, 0.0, 0.0, 0.0]})
    seconds, _ = cpu.advance({"0": [110.0, 0.0, 49.0, 990.0, 70.0, 0.0, 0.0, 0.0, 0.0, 0.0]})
    assert seconds["0", "user"] == 1.1
    assert seconds["0", "system"] == 0.5
    assert seconds["0", "idle"] == 10.0
    assert seconds["0", "iowait"] == 0.8


def test_a_cpu_that_was_removed_and_added_restarts_at_its_new_times() -> None:
    cpu = MonotonicCpu()
    busy = [100.0, 0.0, 50.0, 1000.0, 80.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    cpu.advance({"0": busy, "1": busy})
    seconds, guest = cpu.advance({"0": [1.0] * 10})
    assert seconds["0", "idle"] == 0.01
    assert ("1", "idle") not in seconds
    assert guest == {("0", "user"): 0.01, ("0", "nice"): 0.01}
