"""Real cgroups and real processes, seen from the machine and from a cgroup namespace of one's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_lookup import ProcessKey, ProcessLookup
from gpuscope.agent.owners.users import UserNames

LOOK = """
import json, sys
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.cgroup import parse_cgroup
for pid in sys.argv[1:]:
    place = parse_cgroup(Proc().cgroup(int(pid)))
    print(json.dumps([repr(place.pod_uid).strip("'"), place.container_id, place.relative]))
"""


def hierarchies() -> list[Path]:
    """Mounted cgroup trees, the unified one first."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found.append((kind != "cgroup2", Path(where)))
    return [path for _, path in sorted(found)]


class Tree:
    """Groups of our own below a hierarchy's root, taken away at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: list[Path] = []
        self._sleepers: list[subprocess.Popen[bytes]] = []

    def make(self, path: str) -> Path:
        folder = self.root
        for part in path.split("/"):
            folder = folder / part
            if not folder.exists():
                folder.mkdir()
                self._made.append(folder)
        return folder

    def sleeper(self, path: str) -> int:
        folder = self.make(path)
        sleeper = subprocess.Popen(["sleep", "600"])
        self._sleepers.append(sleeper)
        (folder / "cgroup.procs").write_text(str(sleeper.pid))
        return sleeper.pid

    def close(self) -> None:
        for sleeper in self._sleepers:
            sleeper.kill()
            sleeper.wait()
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()


@pytest.fixture
def tree() -> Iterator[Tree]:
    if os.geteuid() != 0:
        pytest.skip("real cgroups: needs root")
    why = "no cgroup hierarchy is mounted"
    for root in hierarchies():
        made = Tree(root)
        try:
            made.sleeper("gpuscope-test")
        except OSError as error:
            why = f"{root}: {error}"
            made.close()
            continue
        try:
            yield made
        finally:
            made.close()
        return
    pytest.skip(f"real cgroups: {why}")


def pod_path(uid: str, container: str) -> str:
    escaped = uid.replace("-", "_")
    return f"gpuscope-test/kubepods.slice/kubepods-pod{escaped}.slice/cri-containerd-{container}.scope"


def test_a_real_process_in_a_real_cgroup(tree: Tree) -> None:
    uid, container = str(uuid.uuid4()), "ab" * 32
    pid = tree.sleeper(pod_path(uid, container))
    proc = Proc()
    lookup = ProcessLookup(proc, UserNames())
    found = lookup.look_up(ProcessKey(pid, proc.stat(pid).start_ticks))
    assert (found.cgroup.pod_uid, found.cgroup.container_id) == (uid, container)
    assert found.user == "root"
    assert proc.stat(pid).comm == "sleep"
    assert not lookup.failures


def test_from_a_cgroup_namespace_of_ones_own(tree: Tree) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("private cgroup namespace: there is no unshare here")
    mine, other = str(uuid.uuid4()), str(uuid.uuid4())
    agent_group = tree.make(pod_path(mine, "aa" * 32))
    neighbour = tree.sleeper(pod_path(other, "bb" * 32))
    sibling = tree.sleeper(pod_path(mine, "cc" * 32))
    join = f'echo $$ > {agent_group}/cgroup.procs; exec unshare -C "$@"'
    done = subprocess.run(
        ["sh", "-c", join, "sh", sys.executable, "-c", LOOK, str(neighbour), str(sibling)],
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"private cgroup namespace: {done.stderr.strip()}")
    assert done.stderr == ""
    of_neighbour, of_sibling = done.stdout.splitlines()
    assert json.loads(of_neighbour) == [other, "bb" * 32, True]
    assert json.loads(of_sibling) == ["ABSENT", "cc" * 32, True], "of its own pod only the container is left"
