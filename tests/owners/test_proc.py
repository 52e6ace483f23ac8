"""What /proc says: hostile names, processes that end while they are read, users of containers."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.proc import (
    Proc,
    ProcessGone,
    ProcessRelations,
    ProcessStatus,
    parse_boot_time,
    parse_stat,
    parse_status,
)
from gpuscope.agent.owners.process_lookup import (
    NO_VARIABLES,
    ProcessKey,
    ProcessLookup,
    SlurmVariables,
    keys_of,
    parse_command_line,
    parse_environment,
)
from gpuscope.agent.owners.users import UserNames, parse_names, parse_ranges
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT
from tests.owners.trees import BOOTED_AT, CONTAINER, POD_UID, ProcTree, pod_cgroup


def lookup_of(tree: ProcTree, rootfs: Path, full_commands: bool = False) -> ProcessLookup:
    return ProcessLookup(Proc(str(tree.root)), UserNames(str(rootfs)), full_commands)


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/h:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nml:x:1001:alice\n")
    (tmp_path / "etc/subuid").write_text("alice:100000:65536\n")
    return ProcTree(tmp_path / "proc")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), st.integers(0, 2**63))
def test_a_name_may_hold_anything(comm: str, ticks: int) -> None:
    text = f"17 ({comm}) R {' '.join(['-1'] * 18)} {ticks} 5 6 7\n".encode()
    stat = parse_stat(text)
    assert (stat.comm, stat.start_ticks) == (comm, ticks)


@given(st.binary(max_size=200))
def test_garbage_in_proc_is_said_to_be_garbage(text: bytes) -> None:
    for parse in (parse_stat, parse_status, parse_boot_time):
        with contextlib.suppress(SourceError, ProcessGone):
            parse(text)


def test_this_very_process() -> None:
    proc = Proc()
    stat = proc.stat(os.getpid())
    assert stat.comm
    status = proc.status(os.getpid())
    assert (status.uid, status.gid) == (os.getuid(), os.getgid())
    assert status.relations == ProcessRelations(os.getppid(), os.getpgid(0), os.getsid(0))
    assert status.relations == proc.relations(os.getpid())[1]
    assert abs(proc.started_at(stat.start_ticks) - time.time()) < 86400 * 365
    assert proc.started_at(stat.start_ticks) <= time.time() + 2
    assert "\n" in proc.cgroup(os.getpid()) or ":" in proc.cgroup(os.getpid())


STATUS = (
    "Name:\tevil\\nPPid:\t66\nState:\tS (sleeping)\nPid:\t7\nPPid:\t3\nTracerPid:\t0\nUid:\t1001\t0\t0\t0\n"
    "Gid:\t1002\t0\t0\t0\nFDSize:\t64\nGroups:\t{groups}\nNStgid:\t7\t1\nNSpid:\t7\t1\nNSpgid:\t5\t1\nNSsid:\t4\t1\n"
    "VmPeak:\t2928 kB\n"
)


def test_relations_are_numbers_of_the_machine_s_namespace() -> None:
    """Those of a container come behind them."""
    assert parse_status(STATUS.format(groups="27").encode()) == ProcessStatus(
        1001, 1002, ProcessRelations(3, 5, 4)
    )


@pytest.mark.parametrize("cut_at", ["NSpgid", "NSsid", "4\t1\nVmPeak", "\nVmPeak"])
def test_relations_behind_a_long_list_of_groups_are_read_elsewhere(cut_at: str) -> None:
    text = STATUS.format(groups=" ".join(map(str, range(800))))
    assert parse_status(text.partition(cut_at)[0].encode()) == ProcessStatus(1001, 1002, None)


def test_a_process_that_has_ended_is_gone() -> None:
    with pytest.raises(ProcessGone):
        Proc().stat(2**22 + 5)
    assert keys_of([2**22 + 5, os.getpid()], Proc()).keys() == {os.getpid()}


def test_everything_about_a_process_in_a_pod(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, uid=1001, gid=1001, cgroup=pod_cgroup(), cmdline=("python3", "train.py", "--key=hunter2"))
    found = lookup_of(tree, tmp_path).look_up(ProcessKey(7, 1000))
    assert (found.user, found.group) == ("alice", "ml")
    assert (found.cgroup.pod_uid, found.cgroup.container_id) == (POD_UID, CONTAINER)
    assert found.command_line is ABSENT, "arguments may be secret"
    full = lookup_of(tree, tmp_path, full_commands=True).look_up(ProcessKey(7, 1000))
    assert full.command_line == "python3 train.py --key=hunter2"


@pytest.mark.parametrize(
    ("uid", "passwd", "name"),
    [
        (1001, "mallory:x:1001:1::/:/x\n", "alice"),  # the machine's own word counts
        (100_999, "jovyan:x:100999:1::/:/x\n", "alice"),  # rootless: whose range it is
        (4242, "jovyan:x:4242:1::/:/x\n", "jovyan"),
        (4242, "alice:x:4242:1::/:/x\n", "4242"),  # a container may not claim somebody's name
        (4242, "bad name\n:x:4242:\n\x1b[31m:x:4242:1\n", "4242"),
        (4242, "", "4242"),
    ],
)
def test_a_containers_user(tree: ProcTree, tmp_path: Path, uid: int, passwd: str, name: str) -> None:
    tree.add(7, uid=uid, cgroup=pod_cgroup(), passwd=passwd)
    assert lookup_of(tree, tmp_path).look_up(ProcessKey(7, 1000)).user == name


def test_outside_a_container_nobody_elses_passwd_is_asked(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, uid=4242, passwd="jovyan:x:4242:1::/:/x\n")
    assert lookup_of(tree, tmp_path).look_up(ProcessKey(7, 1000)).user == "4242"


def test_one_unreadable_part_leaves_the_others(tree: ProcTree, tmp_path: Path) -> None:
    folder = tree.add(7, uid=1001, gid=1001, cgroup="0::/slurm/uid_1001/job_9/step_0\n")
    (folder / "environ").unlink()
    (folder / "environ").mkdir()  # reading a folder fails for root too
    lookup = lookup_of(tree, tmp_path)
    found = lookup.look_up(ProcessKey(7, 1000))
    assert (found.user, found.cgroup.job) == ("alice", "9")
    assert lookup.failures == {"environment": 1}


def test_looked_up_once_and_again_when_the_pid_is_reused(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, uid=1001)
    lookup, first = lookup_of(tree, tmp_path), ProcessKey(7, 1000)
    lookup.want([first])
    before = lookup.read().value[first]
    tree.add(7, uid=0)
    assert lookup.read().value[first] is before
    second = ProcessKey(7, 2000)
    lookup.want([second])
    known = lookup.read().value
    assert known.keys() == {second}
    assert known[second].user == "root"


def test_the_environment_of_a_slurm_job() -> None:
    text = b"PATH=/bin\0SLURM_JOB_ID=18\0SLURM_ARRAY_JOB_ID=9\0SLURM_ARRAY_TASK_ID=0\0SLURM_STEP_ID=4294967294"
    text += b"\0SLURM_JOB_ACCOUNT=ml\0SLURM_JOB_PARTITION=gpu\0SLURM_JOB_ID=99\0"
    expected = SlurmVariables(
        job="18", job_step="4294967294", job_array="9_0", job_account="ml", job_partition="gpu"
    )
    assert parse_environment(text) == expected
    # A process of component 2 of heterogeneous job 1: Slurm gives it the leader's variables.
    component = b"SLURM_HET_SIZE=2\0SLURM_JOB_ID=1\0SLURM_STEP_ID=0\0SLURM_JOB_PARTITION=gpu\0"
    assert parse_environment(component) == SlurmVariables(job_step="0")
    assert parse_environment(b"SLURM_JOB_ID=1;rm -rf\0SLURM_JOB_ACCOUNT=a b\0") == NO_VARIABLES


def test_a_containers_environment_does_not_make_it_a_job(tree: ProcTree, tmp_path: Path) -> None:
    tree.add(7, cgroup=pod_cgroup(), environ={"SLURM_JOB_ID": "12"})
    tree.add(8, cgroup="0::/user.slice\n", environ={"SLURM_JOB_ID": "12"})
    lookup = lookup_of(tree, tmp_path)
    assert lookup.look_up(ProcessKey(7, 1000)).slurm.job is ABSENT
    assert lookup.look_up(ProcessKey(8, 1000)).slurm.job == "12"


@given(st.binary(max_size=300))
def test_any_environment_and_command_line(text: bytes) -> None:
    parse_environment(b"SLURM_JOB_ID=" + text)
    parse_environment(text)
    line = parse_command_line(text)
    assert line is ABSENT or 0 < len(line) <= 512


@given(st.text(max_size=200))
def test_any_passwd_and_subuid(text: str) -> None:
    for name in parse_names(text).values():
        assert name.isascii()
        assert name.isprintable()
    parse_ranges(text)


def test_start_times_are_seconds_since_the_epoch(tree: ProcTree) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert Proc(str(tree.root)).started_at(5 * ticks) == BOOTED_AT + 5


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nothing"])
def test_what_a_container_may_put_where_its_passwd_should_be(tree: ProcTree, tmp_path: Path, kind: str) -> None:
    folder = tree.add(7, uid=4242, cgroup=pod_cgroup(), passwd="x\n")
    passwd = folder / "root/etc/passwd"
    passwd.unlink()
    outside = tmp_path / "outside"
    outside.write_text("intruder:x:4242:1::/:/x\n")
    if kind == "link":
        passwd.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(passwd)
    elif kind == "folder":
        passwd.mkdir()
    assert lookup_of(tree, tmp_path).look_up(ProcessKey(7, 1000)).user == "4242"
