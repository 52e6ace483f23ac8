"""Whatever happens to nodes, clocks, the server and the holder: a command never ends work.

A job or a pod on a simulated fleet, in steps of a minute. The truth is known: when it began, when it worked on
each GPU, and when a warning reached its user.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gpuscope.judge.notify.idle_policy.idle_holders import MAX_AGE_SECONDS, HolderKey, IdleHolder, IdleReading
from gpuscope.judge.notify.idle_policy.job_nodes import JobNodes
from gpuscope.judge.notify.idle_policy.policy_file import IdlePolicy
from gpuscope.judge.notify.idle_policy.policy_steps import GONE_SECONDS, PolicySteps
from tests.examples import examples

JOB = HolderKey("job", "17")
POD = HolderKey("pod", "train-0", "ml")
NODES = ("a", "b", "c")
POLICY = IdlePolicy(
    warn_after_seconds=(1200.0, 1800.0),
    act_after_seconds=2400.0,
    grace_seconds=600.0,
    command=("scancel", "{job}"),
    pod_command=("kubectl", "delete", "{pod}"),
    is_dry_run=False,
)
ANY_NODE = st.sampled_from(NODES)
MINUTES = st.integers(0, 50)
"""How long a change lasts before the next one."""


@dataclass
class Fleet:
    """The truth, in seconds of a clock that never jumps."""

    key: HolderKey = JOB
    now: float = 0.0
    wall_offset: float = 1_800_000_000.0
    worked_at: dict[str, float] = field(default_factory=lambda: {"a": 0.0})
    """By the nodes on whose GPU the holder has a process: when it last worked there."""
    began_at: float = 0.0
    incarnation: int = 0
    agent_since: dict[str, float] = field(default_factory=dict)
    """By node: the beginning of an idle time that the agent has from the pod before."""
    ghosts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By node that the holder has left: the last sample's idle seconds, and its time."""
    working: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    no_owners: set[str] = field(default_factory=set)
    """Nodes whose agent cannot tell the owner of a process."""
    knows_uids: bool = True
    channel_works: bool = True
    slurm_answers: bool = True

    @property
    def wall(self) -> float:
        return self.wall_offset + self.now

    def pass_minute(self) -> None:
        self.now += 60.0
        for node in self.working & self.worked_at.keys():
            self.worked_at[node] = self.now
            self.agent_since.pop(node, None)

    def idle(self, node: str) -> float:
        return self.now - self.agent_since.get(node, self.worked_at[node])

    def recreate(self, node: str) -> None:
        """Under the same name: a job that was requeued, or a pod."""
        for left in self.worked_at.keys() - self.silent - self.no_owners:
            self.ghosts[left] = (self.idle(left), self.now)
        before = self.agent_since.get(node, self.worked_at.get(node))
        self.began_at, self.worked_at, self.agent_since = self.now, {node: self.now}, {}
        self.incarnation += 1
        if before is not None and self.key is POD and self.knows_uids:
            self.agent_since[node] = before

    def reading(self) -> IdleReading:
        seen = set(NODES) - self.silent - self.no_owners
        idle = {f"{node}/0": self.idle(node) for node in self.worked_at if node in seen}
        accounted = frozenset((self.key.kind, f"{node}/0") for node in seen)
        for node, (seconds, at) in self.ghosts.items():
            if self.now - at < MAX_AGE_SECONDS:
                idle.setdefault(f"{node}/0", seconds)
        if not idle:
            return IdleReading([], accounted)
        holder = IdleHolder(self.key, idle, set(idle), user="ann")
        if self.key is JOB and self.slurm_answers:
            holder.forget_idle_beyond(self.now - self.began_at)
            holder.allocated = len(self.worked_at)
            holder.place(JobNodes(frozenset(self.worked_at)), {})
        if self.key is POD and self.knows_uids and self.worked_at.keys() & seen:
            holder.uids = {str(self.incarnation)}
        return IdleReading([holder], accounted)


class PolicyHistory(RuleBasedStateMachine):
    @initialize(key=st.sampled_from([JOB, POD]), knows_uids=st.booleans(), minutes=MINUTES)
    def begin(self, key: HolderKey, knows_uids: bool, minutes: int) -> None:
        self.fleet = Fleet(key, knows_uids=knows_uids)
        self.steps = PolicySteps(POLICY)
        self.stepped_at: float | None = None
        self.delivered_at: float | None = None
        self.seen: tuple[float, float] | None = None
        """When the holder was last reported, by the clock that never jumps and by the other one."""
        self.anew_at = 0.0
        """Since then warnings count: it began, or was not reported for long."""
        self.wait(minutes)

    def wait(self, minutes: int) -> None:
        for _ in range(minutes):
            self.fleet.pass_minute()
            self.step()

    def step(self) -> None:
        fleet = self.fleet
        for key, _, _ in self.steps.undelivered() if fleet.channel_works else ():
            self.steps.delivered(key, fleet.wall)
            self.delivered_at = fleet.now
        reading = fleet.reading()
        if reading.holders:
            gap = (0.0, 0.0) if self.seen is None else (fleet.now - self.seen[0], fleet.wall - self.seen[1])
            if min(gap) > GONE_SECONDS:
                self.anew_at = fleet.now
            self.seen = (fleet.now, fleet.wall)
        elapsed = 0.0 if self.stepped_at is None else fleet.now - self.stepped_at
        step = self.steps.step(reading, fleet.wall, elapsed)
        self.stepped_at = fleet.now
        for action in step.actions:
            if action.kind == "warned":
                self.delivered_at = None
            if action.kind == "run":
                event(f"a command ran for a {fleet.key.kind}")
                self.check_run()

    def check_run(self) -> None:
        fleet = self.fleet
        shortest = min(fleet.now - at for at in fleet.worked_at.values())
        assert shortest >= POLICY.act_after_seconds, "it worked on a GPU, or has just begun"
        assert not fleet.worked_at.keys() & (fleet.silent | fleet.no_owners), "one of its GPUs is not known"
        assert self.delivered_at is not None, "nobody was warned"
        assert fleet.now - self.delivered_at >= POLICY.grace_seconds, "too soon after the warning"
        assert self.delivered_at >= max(self.anew_at, fleet.began_at), "the warning is of an earlier time"

    @rule(down=st.integers(0, 200), minutes=MINUTES)
    def restart(self, down: int, minutes: int) -> None:
        for _ in range(down):
            self.fleet.pass_minute()
        kept = json.loads(json.dumps(self.steps.to_json()))
        self.steps, self.stepped_at = PolicySteps(POLICY), None
        self.steps.from_json(kept)
        self.wait(minutes)

    @rule(seconds=st.integers(-3 * 3600, 3 * 3600), minutes=MINUTES)
    def set_clock(self, seconds: int, minutes: int) -> None:
        self.fleet.wall_offset += seconds
        self.wait(minutes)

    @rule(node=ANY_NODE, minutes=MINUTES)
    def hold(self, node: str, minutes: int) -> None:
        if self.fleet.key is JOB:
            self.fleet.worked_at.setdefault(node, self.fleet.now)
        self.wait(minutes)

    @rule(node=ANY_NODE, minutes=MINUTES)
    def leave(self, node: str, minutes: int) -> None:
        if len(self.fleet.worked_at) > 1:
            self.fleet.worked_at.pop(node, None)
        self.wait(minutes)

    @rule(node=st.none() | ANY_NODE, minutes=MINUTES)
    def recreate(self, node: str | None, minutes: int) -> None:
        """On the node where it is, or on another one."""
        self.fleet.recreate(node or min(self.fleet.worked_at))
        self.wait(minutes)

    @rule(node=ANY_NODE, works=st.booleans(), minutes=MINUTES)
    def work(self, node: str, works: bool, minutes: int) -> None:
        (self.fleet.working.add if works else self.fleet.working.discard)(node)
        self.wait(minutes)

    @rule(node=ANY_NODE, is_silent=st.booleans(), minutes=MINUTES)
    def silence(self, node: str, is_silent: bool, minutes: int) -> None:
        (self.fleet.silent.add if is_silent else self.fleet.silent.discard)(node)
        self.wait(minutes)

    @rule(node=ANY_NODE, is_known=st.booleans(), minutes=MINUTES)
    def know_owners(self, node: str, is_known: bool, minutes: int) -> None:
        (self.fleet.no_owners.discard if is_known else self.fleet.no_owners.add)(node)
        self.wait(minutes)

    @rule(channel=st.booleans(), slurm=st.booleans(), minutes=MINUTES)
    def change_others(self, channel: bool, slurm: bool, minutes: int) -> None:
        self.fleet.channel_works, self.fleet.slurm_answers = channel, slurm
        self.wait(minutes)


TestPolicyHistory = PolicyHistory.TestCase
TestPolicyHistory.settings = settings(max_examples=examples(150), stateful_step_count=20, deadline=None)


def test_the_plain_history_ends_in_a_command() -> None:
    """The property above does not hold because nothing ever runs."""
    for key in (JOB, POD):
        fleet, steps, kinds = Fleet(key), PolicySteps(POLICY), []
        for _ in range(60):
            fleet.pass_minute()
            for pending, _, _ in steps.undelivered():
                steps.delivered(pending, fleet.wall)
            actions = steps.step(fleet.reading(), fleet.wall, 60.0).actions
            kinds += [action.kind for action in actions]
        assert kinds == ["warned", "warned", "run"]
