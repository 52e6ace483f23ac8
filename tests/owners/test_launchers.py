"""Which processes belong together: real shells, process groups, sessions, launchers and rank variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.agent.owners.attribution import program_of
from gpuscope.agent.owners.proc import Proc, ProcessGone, ProcessRelations, parse_relations
from gpuscope.agent.owners.process_lookup import LauncherLookup, ProcessKey, ProcessLookup
from gpuscope.agent.owners.users import UserNames
from gpuscope.model.readings import ABSENT, Owner


@contextmanager
def run(
    *command: str, lines: int = 2, env: Mapping[str, str] | None = None, new_session: bool = False
) -> Iterator[list[int]]:
    """Starts a program whose children each print their PID; the PIDs, and first that of the program itself."""
    environment = {**os.environ, **(env or {})}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=new_session,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield [process.pid, *(int(process.stdout.readline()) for _ in range(lines))]
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


CHILD = 'import os, sys; os.write(1, b"%d\\n" % os.getpid()); sys.stdin.read()'
"""It ends with its standard input."""
TWO_CHILDREN = f"""
import subprocess, sys
for _ in range(2): subprocess.Popen([sys.executable, '-c', {CHILD!r}])
sys.stdin.read()
"""
TWO_SESSIONS = TWO_CHILDREN.replace("])", "], start_new_session=True)")


def programs(pids: list[int]) -> list[str]:
    """As the agent looks them up."""
    proc = Proc()
    lookup = ProcessLookup(proc, UserNames("/"))
    found = []
    for pid in pids:
        facts = lookup.look_up(ProcessKey(pid, proc.stat(pid).start_ticks))
        found.append(program_of(Owner(user="ann"), facts.launcher, pid))
    return found


def shell_script(*variables: str) -> str:
    """Starts two children in the background, without job control."""
    child = f"{sys.executable} -c '{CHILD}' <&3 &"
    first, second = variables or ("", "")
    return f"exec 3<&0; {first} {child} {second} {child} wait"


def test_two_programs_from_two_shells_are_two() -> None:
    shell = ("bash", "-c", f"set -m; exec 3<&0; {sys.executable} -c '{CHILD}' <&3 & wait")
    with run(*shell, lines=1) as (_, first), run(*shell, lines=1) as (_, second):
        assert programs([first, second]) == [f"pid-{first}", f"pid-{second}"]


def test_what_a_shell_with_job_control_starts_in_the_background_is_two() -> None:
    with run("bash", "-c", "set -m; " + shell_script(), new_session=True) as (_, *pids):
        assert programs(pids) == [f"pid-{pid}" for pid in pids]


def test_two_servers_of_a_script_are_two() -> None:
    """They are in one process group, whose leader is a shell."""
    with run("bash", "-c", shell_script(), new_session=True) as (shell, *pids):
        assert {os.getpgid(pid) for pid in pids} == {shell}
        assert programs(pids) == [f"pid-{pid}" for pid in pids]


def test_ranks_that_a_script_starts_are_one_and_two_runs_are_two() -> None:
    def ranks(port: int) -> tuple[str, str]:
        return tuple(f"RANK={rank} WORLD_SIZE=2 MASTER_PORT={port}" for rank in (0, 1))  # type: ignore[return-value]

    with run("bash", "-c", shell_script(*ranks(29500)), new_session=True) as (shell, *pids):
        assert programs(pids) == [f"pid-{shell}:29500"] * 2
    one_of_each = ranks(29500)[0], ranks(29501)[1]
    with run("bash", "-c", shell_script(*one_of_each), new_session=True) as (_, *pids):
        assert len(set(programs(pids))) == 2


@pytest.mark.parametrize(
    "variables",
    ["WORLD_SIZE=1 RANK=0", "WORLD_SIZE=x RANK=0", "WORLD_SIZE=2", "XWORLD_SIZE=2 RANK=1", "RANK=1"],
)
def test_a_process_without_a_rank_among_several_is_alone(variables: str) -> None:
    with run("bash", "-c", shell_script(variables, variables), new_session=True) as (_, *pids):
        assert programs(pids) == [f"pid-{pid}" for pid in pids]


def test_a_main_program_and_its_children_are_one() -> None:
    with run(sys.executable, "-c", TWO_CHILDREN, new_session=True) as pids:
        assert programs(pids) == [f"pid-{pids[0]}"] * 3


def test_children_in_a_group_of_their_own_belong_to_the_leader_of_the_session() -> None:
    code = TWO_CHILDREN.replace("])", "], process_group=0)")
    with run(sys.executable, "-c", code, new_session=True) as pids:
        assert programs(pids) == [f"pid-{pids[0]}"] * 3


@pytest.mark.parametrize("name", ["torchrun", "accelerate", "deepspeed", "mpirun"])
def test_children_of_a_known_launcher_are_one_in_whatever_session(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_text(f"#!{sys.executable}\n{TWO_SESSIONS}")
    program.chmod(0o755)
    with run("bash", "-c", f"set -m; exec 3<&0; {program} <&3 & wait", new_session=True) as (_, *pids):
        (launcher,) = {Proc().relations(pid)[1].parent for pid in pids}
        assert programs(pids) == [f"pid-{launcher}"] * 2


def test_a_module_is_a_launcher_too(tmp_path: Path) -> None:
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True)
    (package / "run.py").write_text(TWO_SESSIONS)
    with run(sys.executable, str(package / "run.py"), new_session=True) as (launcher, *pids):
        assert programs(pids) == [f"pid-{launcher}"] * 2
    command = (sys.executable, "-m", "torch.distributed.run")
    with run(*command, env={"PYTHONPATH": str(tmp_path)}, new_session=True) as (launcher, *pids):
        assert programs(pids) == [f"pid-{launcher}"] * 2
    text = "pretends to be torch.distributed.run"
    with run(sys.executable, "-c", TWO_SESSIONS, text, new_session=True) as (_, *pids):
        assert programs(pids) == [f"pid-{pid}" for pid in pids]


def test_a_process_whose_launcher_has_ended_is_alone() -> None:
    """Nobody can say what the leader of its group was."""
    code = TWO_CHILDREN.rsplit("sys.stdin.read()", 1)[0]
    with run(sys.executable, "-c", code, new_session=True) as (leader, *pids):
        os.waitpid(leader, 0)
        assert programs(pids) == [f"pid-{pid}" for pid in pids]
        with pytest.raises(ProcessGone):
            LauncherLookup(Proc()).launcher_of(leader)


@pytest.mark.parametrize(
    ("owner", "program"),
    [
        (Owner(pod="p", namespace="n", pod_uid="u", container="c", container_id="i"), "u/c"),
        (Owner(pod_uid="u", container_id="i"), "u/i"),
        (Owner(pod="p", namespace="n", container="c"), "n/p/c"),
        (Owner(pod="p", namespace="n"), "pid-3"),
        (Owner(user="ann", job="17", job_step="0"), "17.0"),
        (Owner(user="ann", job="17", job_step="batch"), "pid-3"),
        (Owner(user="ann", job="17"), "pid-3"),
        (Owner(user="ann", container_id="i", container="c"), "pid-3"),
        (Owner(), "pid-3"),
    ],
)
def test_the_program_of_an_owner(owner: Owner, program: str) -> None:
    assert program_of(owner, "pid-3", 7) == program
    if program == "pid-3":
        assert program_of(owner, ABSENT, 7) == "pid-7"


def test_relations_of_a_process_with_an_odd_name() -> None:
    assert parse_relations(b"7 (a) b) (c) S 1 2 3 0 -1 0") == ("a) b) (c", ProcessRelations(1, 2, 3))
