"""The host family against a real node_exporter: on a tree both read, byte by byte; on this machine, live."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuscope.agent.families import load_family
from gpuscope.agent.sources.host import HostSource
from gpuscope.agent.sources.host.mounts import FSTYPES_EXCLUDED, MOUNTPOINTS_EXCLUDED
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Snapshot
from gpuscope.model.source import Tier
from tests.engines import engine, running_node_exporter
from tests.sources.host_tree import HostTree, copy_host_tree
from tests.waiting import wait_for

pytestmark = pytest.mark.engine("node_exporter")

# Distributions change these defaults; ours are the upstream ones, so both sides get those.
FLAGS = (
    f"--collector.filesystem.mount-points-exclude=^{MOUNTPOINTS_EXCLUDED.pattern}",
    f"--collector.filesystem.fs-types-exclude=^({FSTYPES_EXCLUDED.pattern})$",
)
COLLECTORS = (
    "cpu",
    "diskstats",
    "filesystem",
    "loadavg",
    "meminfo",
    "netdev",
    "stat",
    "time",
    "timex",
    "uname",
    "vmstat",
)
# Lines of /proc/meminfo in the tree that node_exporter since 1.9 does not know; before, it wrote all, as we do.
MEMORY_LEFT_OUT = {f"node_memory_{name}_bytes" for name in ("KReclaimable", "FileHugePages", "Hugetlb")}


def ours(settings: Settings) -> str:
    source = HostSource(settings)
    host = source.read(frozenset(Tier)).host
    builder = load_family("host").build(settings)
    return encode_text(builder.to_families(Snapshot(node="n", taken_at=0.0, host=host))).decode()


def theirs(flags: Sequence[str]) -> str:
    with (
        running_node_exporter(flags=(*FLAGS, *flags)) as url,
        urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer,
    ):
        text: str = answer.read().decode()
        return text


def blocks(text: str) -> dict[str, list[str]]:
    """HELP, TYPE and series of each family by name, in order."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line:
            name = line.split(" ")[2] if line.startswith("# ") else re.split(r"[{ ]", line, maxsplit=1)[0]
            found.setdefault(name, []).append(line)
    return found


def version() -> tuple[int, int]:
    said = subprocess.run([engine("node_exporter"), "--version"], capture_output=True, text=True, timeout=30)
    found = re.search(r"version (\d+)\.(\d+)", said.stdout + said.stderr)
    assert found
    return int(found[1]), int(found[2])


def comparable(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without what node_exporter 1.12 corrected: mount options and rotational disks."""
    kept = dict(found)
    if version() < (1, 12):
        kept.pop("node_filesystem_readonly", None)
        kept["node_disk_info"] = [
            re.sub(r'rotational="1"', 'rotational="0"', line) for line in kept.get("node_disk_info", [])
        ]
    return kept


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return copy_host_tree(tmp_path)


def test_the_same_tree_has_the_same_bytes(tree: HostTree) -> None:
    flags = (
        "--collector.disable-defaults",
        *(f"--collector.{name}" for name in COLLECTORS),
        "--no-collector.netdev.netlink",
        f"--path.procfs={tree.proc}",
        f"--path.sysfs={tree.sys}",
        f"--path.rootfs={tree.root}",
        f"--path.udev.data={tree.root}/run/udev/data",
    )
    expected = comparable(blocks(theirs(flags)))
    mine = comparable(blocks(ours(tree.settings())))
    moving = {
        "node_time_seconds",
        *(n for n in mine if re.match("node_(filesystem_(avail|free|files)|timex)", n)),
    }
    assert mine.keys() - expected.keys() <= MEMORY_LEFT_OUT
    assert len(mine.keys() & expected.keys()) > 90
    for name in mine.keys() & expected.keys():
        lines = mine[name]
        if name in moving:
            lines, expected[name] = without_values(lines), without_values(expected[name])
        if name.startswith("node_filesystem_"):  # node_exporter cannot ask for a path with a backslash in it
            lines, expected[name] = (
                [ln for ln in two if r"\\134" not in ln] for two in (lines, expected[name])
            )
        assert lines == expected[name]


def without_values(lines: Sequence[str]) -> list[str]:
    return [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in lines]


Blocks = dict[str, list[str]]


def read_together() -> tuple[Blocks, Blocks, Blocks] | None:
    """Ours, node_exporter's, and ours again; None if a mount, disk or interface came or went meanwhile."""
    before = comparable(blocks(ours(Settings())))
    expected = comparable(blocks(theirs(())))
    after = comparable(blocks(ours(Settings())))
    series = [{name: without_values(lines) for name, lines in found.items()} for found in (before, after)]
    return (before, expected, after) if series[0] == series[1] else None


def test_this_machine_at_the_same_moment() -> None:
    together = wait_for(read_together, "two readings with the same series")
    assert together
    before, expected, after = together
    assert all(name.startswith("node_memory_") for name in before.keys() - expected.keys())
    for name in before.keys() & after.keys() & expected.keys():
        assert without_values(after[name]) == without_values(expected[name])
        if expected[name][1].endswith(" counter"):
            for low, middle, high in zip(before[name], expected[name], after[name], strict=True):
                assert number(low) <= number(middle) <= number(high), middle


def number(line: str) -> float:
    return 0.0 if line.startswith("#") else float(line.rsplit(" ", 1)[1])
