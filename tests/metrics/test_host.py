from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuscope.agent.families import load_family
from gpuscope.agent.sources.host import HostSource, mounts
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Filesystem, FilesystemError, HostReading, Maybe, Snapshot
from gpuscope.model.source import Tier
from tests.sources.host_tree import copy_host_tree, fixed_statvfs

GOLDEN = Path(__file__).parents[1] / "golden" / "host" / "gpu-server.metrics"


def to_families(host: Maybe[HostReading]) -> dict[str, MetricFamily]:
    builder = load_family("host").build(Settings())
    return {f.name: f for f in builder.to_families(Snapshot(node="n", taken_at=0.0, host=host))}


def to_text(host: Maybe[HostReading]) -> str:
    return encode_text(to_families(host).values()).decode()


def test_golden_of_a_gpu_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts.FilesystemSizes.__init__, "__defaults__", (fixed_statvfs, 5.0))
    monkeypatch.setattr("time.time", lambda: 1767312000.25)
    uname = os.uname_result(("Linux", "gpu-node-1", "6.8.0-60-generic", "#63-Ubuntu SMP", "x86_64"))
    monkeypatch.setattr("os.uname", lambda: uname)
    clock = {
        "estimated_error_seconds": 0.0,
        "maxerror_seconds": 0.5,
        "offset_seconds": -2e-6,
        "sync_status": 1.0,
    }
    monkeypatch.setattr("gpuscope.agent.sources.host.read_clock_state", lambda: clock)
    reading = HostSource(copy_host_tree(tmp_path).settings()).read(frozenset(Tier))
    text = to_text(reading.host)
    if os.environ.get("GOLDEN_UPDATE"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_without_a_host_there_is_nothing() -> None:
    assert to_families(ABSENT) == {}
    assert to_families(HostReading()) == {}


def test_zero_is_written_and_absent_is_not() -> None:
    text = to_text(HostReading(load1=0.0, memory={"SwapFree_bytes": 0.0}, disks={"sda": {"io_now": 0.0}}))
    assert text == (
        "# HELP node_disk_io_now The number of I/Os currently in progress.\n"
        "# TYPE node_disk_io_now gauge\n"
        'node_disk_io_now{device="sda"} 0\n'
        "# HELP node_load1 1m load average.\n"
        "# TYPE node_load1 gauge\n"
        "node_load1 0\n"
        "# HELP node_memory_SwapFree_bytes Memory information field SwapFree_bytes.\n"
        "# TYPE node_memory_SwapFree_bytes gauge\n"
        "node_memory_SwapFree_bytes 0\n"
    )


def test_a_filesystem_without_an_answer_has_an_error_and_no_size() -> None:
    failed = FilesystemError(
        device="server:/home", mountpoint="/home", fstype="nfs4", error="mountpoint timeout", read_only=False
    )
    families = to_families(HostReading(filesystem_errors=(failed,)))
    assert set(families) == {"node_filesystem_device_error", "node_filesystem_readonly"}
    ((labels, value),) = families["node_filesystem_device_error"].samples
    assert value == 1
    assert dict(labels.pairs)["device_error"] == "mountpoint timeout"


def test_hostile_names_are_escaped() -> None:
    name = 'a"b\\c\nd'
    found = Filesystem(
        device=name,
        mountpoint=name,
        fstype=name,
        size_bytes=1.0,
        free_bytes=1.0,
        available_bytes=1.0,
        files=1.0,
        files_free=1.0,
        read_only=False,
    )
    text = to_text(
        HostReading(
            filesystems=(found,),
            disks={name: {"io_now": 1.0}},
            networks={name: {"receive_bytes_total": 1.0}},
        )
    )
    escaped = r"a\"b\\c\nd"
    assert f'node_disk_io_now{{device="{escaped}"}} 1\n' in text
    assert f'node_network_receive_bytes_total{{device="{escaped}"}} 1\n' in text
    assert f'mountpoint="{escaped}"}} 1\n' in text
    assert all(line.startswith(("node_", "# ")) for line in text.splitlines())


def test_the_same_reading_is_built_once() -> None:
    builder = load_family("host").build(Settings())
    host = HostReading(load1=1.0)
    first = builder.to_families(Snapshot(node="n", taken_at=0.0, host=host))
    assert builder.to_families(Snapshot(node="n", taken_at=1.0, host=host)) is first
    assert builder.to_families(Snapshot(node="n", taken_at=2.0)) == ()
    again = builder.to_families(Snapshot(node="n", taken_at=3.0, host=HostReading(load1=2.0)))
    assert [family.samples[0][1] for family in again] == [2.0]
