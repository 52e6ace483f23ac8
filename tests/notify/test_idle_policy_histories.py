"""Whatever happens to nodes, clocks, the server and the holder: a command never ends work.

Random histories of a job on a simulated fleet, in steps of a minute. The truth is known: when the job worked on
each GPU, and when a warning reached its user.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from gpuscope.notify.idle_policy.idle_holders import HolderKey, IdleHolder, IdleReading
from gpuscope.notify.idle_policy.job_nodes import JobNodes
from gpuscope.notify.idle_policy.policy_file import IdlePolicy
from gpuscope.notify.idle_policy.policy_steps import PolicySteps

JOB = HolderKey("job", "17")
NODES = ("a", "b", "c")
POLICY = IdlePolicy(
    warn_after_seconds=(1200.0, 1800.0),
    act_after_seconds=2400.0,
    grace_seconds=600.0,
    command=("scancel", "{job}"),
    is_dry_run=False,
)
ANY_NODE = st.sampled_from(NODES)
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["hold", "leave", "work", "pause"]), ANY_NODE),
    st.tuples(st.sampled_from(["silent", "reports", "no owners", "owners"]), ANY_NODE),
    st.tuples(st.sampled_from(["channel fails", "channel works", "restart", "no Slurm", "Slurm"]), st.just("")),
    st.tuples(st.just("down"), st.integers(1, 200)),
    st.tuples(st.just("clock"), st.integers(-3 * 3600, 3 * 3600)),
)
HISTORIES = st.lists(st.tuples(EVENTS, st.integers(0, 50)), min_size=1, max_size=25)


@dataclass
class Fleet:
    """The truth, in seconds of a clock that never jumps."""

    now: float = 0.0
    wall_offset: float = 1_800_000_000.0
    worked_at: dict[str, float] = field(default_factory=lambda: {"a": 0.0})
    """By the nodes on whose GPU the job has a process: when it last worked there."""
    working: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    no_owners: set[str] = field(default_factory=set)
    """Nodes whose agent cannot tell the owner of a process."""
    channel_works: bool = True
    slurm_answers: bool = True
    delivered_at: float | None = None
    """Of the last warning."""

    def pass_minute(self) -> None:
        self.now += 60.0
        for node in self.working & self.worked_at.keys():
            self.worked_at[node] = self.now

    def reading(self) -> IdleReading:
        seen = set(NODES) - self.silent - self.no_owners
        idle = {f"{node}/0": self.now - at for node, at in self.worked_at.items() if node in seen}
        accounted = frozenset(("job", f"{node}/0") for node in seen)
        if not idle:
            return IdleReading([], accounted)
        holder = IdleHolder(JOB, idle, set(idle), user="ann")
        if self.slurm_answers:
            holder.allocated = len(self.worked_at)
            holder.place(JobNodes(frozenset(self.worked_at)), {})
        return IdleReading([holder], accounted)

    def change(self, what: str, value: str | int) -> None:
        if isinstance(value, int):
            self.wall_offset += value if what == "clock" else 0
        elif what == "hold":
            self.worked_at.setdefault(value, self.now)
        elif what == "leave":
            self.worked_at.pop(value, None)
        elif what in ("work", "pause"):
            (self.working.add if what == "work" else self.working.discard)(value)
        elif what in ("silent", "reports"):
            (self.silent.add if what == "silent" else self.silent.discard)(value)
        elif what in ("no owners", "owners"):
            (self.no_owners.add if what == "no owners" else self.no_owners.discard)(value)
        elif what.startswith("channel"):
            self.channel_works = what == "channel works"
        elif what.endswith("Slurm"):
            self.slurm_answers = what == "Slurm"


@settings(max_examples=300, deadline=None)
@given(HISTORIES)
def test_a_command_runs_only_after_known_idleness_and_a_delivered_warning(
    history: list[tuple[tuple[str, str | int], int]],
) -> None:
    fleet, steps, stepped_at = Fleet(), PolicySteps(POLICY), None
    for (what, value), minutes in history:
        fleet.change(what, value)
        if what in ("restart", "down"):
            for _ in range(value if isinstance(value, int) else 0):
                fleet.pass_minute()
            kept = json.loads(json.dumps(steps.to_json()))
            steps, stepped_at = PolicySteps(POLICY), None
            steps.from_json(kept)
        for _ in range(minutes):
            fleet.pass_minute()
            for key, _, _ in steps.undelivered() if fleet.channel_works else ():
                steps.delivered(key)
                fleet.delivered_at = fleet.now
            elapsed = 0.0 if stepped_at is None else fleet.now - stepped_at
            step = steps.step(fleet.reading(), fleet.wall_offset + fleet.now, elapsed)
            stepped_at = fleet.now
            for action in step.actions:
                if action.kind == "warned":
                    fleet.delivered_at = None
                if action.kind == "run":
                    check(fleet)


def check(fleet: Fleet) -> None:
    event("a command ran")
    shortest = min(fleet.now - at for at in fleet.worked_at.values())
    assert shortest >= POLICY.act_after_seconds, "it worked on a GPU"
    assert fleet.delivered_at is not None, "nobody was warned"
    assert fleet.now - fleet.delivered_at >= POLICY.grace_seconds, "too soon after the warning"


def test_the_plain_history_ends_in_a_command() -> None:
    """The property above does not hold because nothing ever runs."""
    fleet, steps, kinds = Fleet(), PolicySteps(POLICY), []
    for _ in range(60):
        fleet.pass_minute()
        for key, _, _ in steps.undelivered():
            steps.delivered(key)
        actions = steps.step(fleet.reading(), fleet.wall_offset + fleet.now, 60.0).actions
        kinds += [action.kind for action in actions]
    assert kinds == ["warned", "warned", "run"]
