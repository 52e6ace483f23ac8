"""How the Slurm source treats slurmctld: one command at a time, each at its interval, with a time limit.

And what it says when a client, not slurmctld, is the cause.
"""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.agent.sources.slurm.restd import SlurmRest
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import Query, SlurmSource
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import SlurmFailure, SlurmState
from tests.examples import examples
from tests.fake_slurm import PROGRAMS, fake_clients
from tests.fake_slurm.exporter_command import exporter_command
from tests.fake_slurm.rest_server import API, rest_answers, serving
from tests.fakes import FakeClock
from tests.ports import free_port
from tests.waiting import wait_for

INTERVAL, SLOW_INTERVAL = 15.0, 60.0


class TimedBackend:
    """Two requests; each takes the next of `durations`, and its start is noted."""

    mode = "timed"

    def __init__(self, clock: FakeClock, durations: list[float]) -> None:
        self._clock = clock
        self._durations = durations
        self.started: dict[str, list[float]] = {"fast": [], "slow": []}
        self.queries = (
            Query("fast", ("jobs",), lambda parts: self._read("fast")),
            Query("slow", ("shares",), lambda parts: self._read("slow"), slow=True),
        )

    def ping(self) -> str:
        return "26.05"

    def close(self) -> None:
        pass

    def _read(self, name: str) -> dict[str, object]:
        self.started[name].append(self._clock.monotonic())
        self._clock.pass_seconds(self._durations.pop() if self._durations else 0.1)
        return {"jobs": ()} if name == "fast" else {"shares": ()}


@given(st.lists(st.floats(0.0, 25.0), max_size=60), st.lists(st.floats(-0.5, 0.5), min_size=60, max_size=60))
@settings(max_examples=examples(50))
def test_no_request_is_sent_more_often_than_its_interval(durations: list[float], jitter: list[float]) -> None:
    """The worker starts a round every 15 s, up to half a second early; a request may take longer than that."""
    clock = FakeClock()
    backend = TimedBackend(clock, durations)
    source = SlurmSource(backend, interval=INTERVAL, slow_interval=SLOW_INTERVAL, clock=clock)
    began = clock.monotonic()
    for shift in jitter:
        round_at = clock.monotonic()
        source.read(frozenset())
        clock.pass_seconds(max(0.0, round_at + INTERVAL + shift - clock.monotonic()))
    lasted = clock.monotonic() - began
    for name, interval in (("fast", INTERVAL), ("slow", SLOW_INTERVAL)):
        assert len(backend.started[name]) <= lasted / (interval - 0.5) + 1
        starts = backend.started[name]
        assert all(later - one >= interval - INTERVAL / 2 for one, later in pairwise(starts))


def test_never_two_commands_at_a_time(tmp_path: Path) -> None:
    """Each client makes a folder, and notes it if another one is there. Scrapes go on meanwhile."""
    clients = fake_clients(tmp_path / "bin", "22.05")
    for name in PROGRAMS:
        program = clients / name
        (clients / f"real-{name}").write_text(program.read_text().replace('$(basename "$0")', name))
        (clients / f"real-{name}").chmod(0o755)
        program.write_text(
            f"#!/bin/sh\nmkdir {tmp_path}/busy || echo {name} >> {tmp_path}/overlaps\n"
            f'"{clients}/real-{name}" "$@"\ncode=$?\nrmdir {tmp_path}/busy\nexit $code\n'
        )
    address = f"127.0.0.1:{free_port()}"
    intervals = ["--interval", "100ms", "--slurm-interval", "100ms", "--slurm-slow-interval", "100ms"]
    agent = subprocess.Popen([*exporter_command(address, clients), *intervals], stderr=subprocess.DEVNULL)
    calls = clients / "calls"

    def has_read_five_rounds() -> bool:
        assert agent.poll() is None, "the agent ended"
        return calls.exists() and calls.read_text().count("sshare") >= 5

    try:
        wait_for(has_read_five_rounds, "five rounds")
    finally:
        agent.terminate()
        agent.wait(30)
    assert not (tmp_path / "overlaps").exists()


def read(clients: Path, timeout_seconds: float = 60.0) -> SlurmState:
    commands = SlurmCommands(str(clients), timeout_seconds)
    state = SlurmSource(commands, interval=INTERVAL, slow_interval=SLOW_INTERVAL).read(frozenset()).slurm
    assert state is not ABSENT
    return state


def test_a_command_past_its_time_is_ended_and_the_others_are_read(tmp_path: Path) -> None:
    """With its children: a wrapper around squeue would leave the real one behind."""
    clients = fake_clients(tmp_path / "bin", "22.05")
    subprocess.run(["mkfifo", str(tmp_path / "pipe")], check=True)
    (clients / "squeue").write_text(f"#!/bin/sh\nsh -c 'read line < {tmp_path}/pipe; touch {tmp_path}/alive'\n")
    state = read(clients, timeout_seconds=2.0)
    whys = {query.name: query.why for query in state.queries}
    assert "did not answer within 2 s and was killed" in whys["squeue"]
    assert [query.failure for query in state.queries if query.name == "squeue"] == [SlurmFailure.TIMEOUT]
    assert (state.jobs, state.up) == (ABSENT, True)
    assert state.nodes is not ABSENT
    assert {name for name, why in whys.items() if why} == {"squeue"}


COMPLAINTS = {
    "libmunge.so.2: cannot open shared object file": (
        "scontrol: error: plugin_load_from_file: dlopen(/usr/lib/auth_munge.so): libmunge.so.2: "
        "cannot open shared object file: No such file or directory\n"
    ),
    'Failed to access "/run/munge/munge.socket.2"': (
        "scontrol: error: If munged is up, restart with --num-threads=10\n"
        'scontrol: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file\n'
    ),
    "systemctl status slurmctld there": "",
}
"""What 22.05's scontrol prints besides `is DOWN`, by what must be said of it."""


@pytest.mark.parametrize("named", COMPLAINTS)
def test_a_client_that_cannot_send_says_why(tmp_path: Path, named: str) -> None:
    clients = fake_clients(tmp_path / "bin", "22.05")
    (clients / "complaint").write_text(COMPLAINTS[named])
    (clients / "scontrol").write_text(
        f"#!/bin/sh\ncat {clients}/complaint >&2\necho 'Slurmctld(primary) at master is DOWN'\nexit 1\n"
    )
    state = read(clients)
    assert not state.up
    assert named in state.why
    assert "primary at master" in state.why


def test_a_slurmrestd_that_was_upgraded_is_read_with_its_new_api() -> None:
    answers = rest_answers("24.11")
    with serving(answers, []) as address:
        source = SlurmSource(SlurmRest(address, 60.0), interval=INTERVAL, slow_interval=SLOW_INTERVAL)
        before = source.read(frozenset()).slurm
        answers.clear()
        answers.update(rest_answers("26.05"))
        after = source.read(frozenset()).slurm
    assert before is not ABSENT
    assert after is not ABSENT
    assert [str(state.version)[:5] for state in (before, after)] == ["24.11", "26.05"]
    assert API["24.11"] != API["26.05"]
