"""The idle policy: who is warned when, what runs, who is excepted, and an audit log that has everything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.notify.idle_policy.idle_holders import HolderKey, IdleHolder, IdleReading
from gpuscope.judge.notify.idle_policy.job_nodes import JobNodes
from gpuscope.judge.notify.idle_policy.policy_file import IdleExceptions, IdlePolicy, load_policy
from gpuscope.judge.notify.idle_policy.policy_state import PolicyAudit
from gpuscope.judge.notify.idle_policy.policy_steps import ActionKind, PolicyAction, PolicyStep, PolicySteps

JOB = HolderKey("job", "17")
POD = HolderKey("pod", "train-0", "ml")
CANCEL = ("scancel", "{job}")
NOW = 1_800_000_000.0


def holder(
    minutes: float, *others: float, key: HolderKey = JOB, unknown: int = 0, **described: str
) -> IdleHolder:
    """With `unknown` more GPUs whose work is not known."""
    idle = {f"n1/{number}": 60 * value for number, value in enumerate((minutes, *others))}
    held = {*idle, *(f"n1/{len(idle) + number}" for number in range(unknown))}
    found = IdleHolder(key, idle, held, len(held), user="ann" if key is JOB else "")
    if key.kind == "job":
        found.place(JobNodes(frozenset({"n1"})), {})
    labels = {"user": found.user, **described}
    found.partition, found.described_by = labels.get("partition", ""), [labels]
    return found


def kinds(step: PolicyStep) -> list[str]:
    return [action.kind for action in step.actions]


class Watch:
    """Steps at given minutes; a channel accepts every warning at once, unless `delivers` is False."""

    def __init__(self, steps: PolicySteps) -> None:
        self.steps = steps
        self.delivers = True
        self.minute: float | None = None

    def step(self, minute: float, *holders: IdleHolder, accounted: Iterable[str] = ()) -> PolicyStep:
        elapsed = 0.0 if self.minute is None else 60 * (minute - self.minute)
        self.minute = minute
        reading = IdleReading(
            list(holders), frozenset((one.key.kind, gpu) for one in holders for gpu in accounted)
        )
        for key, _, _ in self.steps.undelivered() if self.delivers else ():
            self.steps.delivered(key, 0.0)
        return self.steps.step(reading, NOW + 60 * minute, elapsed)

    def run(self, *, until: int, begin: int = 0) -> list[tuple[int, str]]:
        """An idle holder, minute by minute: what happens when."""
        return [
            (minute, kind)
            for minute in range(begin, until + 1)
            for kind in kinds(self.step(minute, holder(minute)))
        ]


def acting(**more: Any) -> PolicySteps:
    return PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False, **more))


def test_warned_after_60_and_105_minutes_and_the_command_after_120() -> None:
    assert Watch(acting()).run(until=300) == [(60, "warned"), (105, "warned"), (121, "run")]


def test_a_dry_run_is_the_default() -> None:
    watch = Watch(PolicySteps(IdlePolicy(command=CANCEL)))
    assert watch.run(until=125) == [(60, "warned"), (105, "warned"), (121, "would_run")]


def test_without_a_command_nothing_runs() -> None:
    assert [kind for _, kind in Watch(PolicySteps(IdlePolicy(is_dry_run=False))).run(until=300)] == [
        "warned"
    ] * 2


def test_at_the_first_start_a_holder_that_is_idle_already_is_warned_once_and_has_the_grace() -> None:
    watch = Watch(acting())
    first = watch.step(130, holder(130))
    assert [(one.kind, one.warning) for one in first.actions] == [("warned", 2)]
    assert watch.run(begin=131, until=200) == [(131 + 15, "run")], "delivered before minute 131"


def test_after_a_long_downtime_the_grace_begins_anew() -> None:
    before = Watch(acting())
    assert before.run(until=118)[-1] == (105, "warned")
    after = Watch(acting())
    after.steps.from_json(json.loads(json.dumps(before.steps.to_json())))
    assert after.run(begin=400, until=430) == [(400, "gone"), (400, "warned"), (416, "run")]


def test_a_restart_neither_repeats_a_warning_nor_shortens_the_grace() -> None:
    before = Watch(acting())
    before.run(until=110)  # four minutes since the delivery
    after = Watch(acting())
    after.steps.from_json(json.loads(json.dumps(before.steps.to_json())))
    assert after.run(begin=120, until=140) == [(131, "run")], "the eleven minutes that were left"


def test_a_warning_that_nobody_got_is_none() -> None:
    watch = Watch(acting())
    watch.delivers = False
    assert watch.run(until=300) == [(60, "warned"), (105, "warned"), (120, "withheld")]
    watch.delivers = True
    assert watch.run(begin=301, until=330) == [(316, "run")]


def test_a_clock_that_jumps_does_not_shorten_the_grace() -> None:
    watch = Watch(acting())
    watch.run(until=121 - 3)
    jumped = NOW + 60 * (118 + 14)  # fourteen minutes ahead, after one minute
    step = watch.steps.step(IdleReading([holder(118 + 14)]), jumped, 60)
    assert kinds(step) == []
    for minute in (1, 2):
        step = watch.steps.step(IdleReading([holder(132 + minute)]), jumped + 60 * minute, 60)
    assert kinds(step) == ["run"], "fifteen minutes after the delivery by the clock that never jumps"


def test_a_server_that_anybody_can_write_to_runs_nothing() -> None:
    policy = IdlePolicy(command=CANCEL, is_dry_run=False)
    watch = Watch(PolicySteps(policy, "this server has no login"))
    assert watch.run(until=300)[2:] == [(120, "withheld")]
    assert "please end it" in dict(watch.step(301, holder(301)).alerts[0].annotations)["description"]


def test_samples_that_somebody_else_may_have_written_run_nothing() -> None:
    watch = Watch(acting())
    found = []
    for minute in range(100, 200):
        idle = holder(minute, minute)
        idle.unverified = {"n1/1"}
        found += watch.step(minute, idle).actions
    assert [one.kind for one in found] == ["warned", "warned", "withheld"]
    assert "sent the samples of n1/1" in found[-1].reason


def test_a_job_that_works_on_one_gpu_is_warned_but_not_ended() -> None:
    watch = Watch(acting())
    actions = [one for minute in range(100, 200) for one in watch.step(minute, holder(minute, 0)).actions]
    assert [one.kind for one in actions] == ["warned", "warned"]
    assert actions[0].gpus == ("n1/0",)


def test_a_warning_about_one_gpu_does_not_announce_the_end_of_a_job_that_works_on_another() -> None:
    """For two days the job uses one of its two GPUs: a warning of the first day is none of the third."""
    watch, found = Watch(acting()), []
    for minute in range(60, 3300):
        works = minute < 3000 or minute == 3200
        step = watch.step(minute, holder(minute, 0 if works else (minute - 3000) % 200))
        found += [(minute, action.kind) for action in step.actions]
        announced = [dict(alert.labels).get("ends_after") for alert in step.alerts if alert.ends_at is None]
        assert works is False or set(announced) == {None}
    assert found == [
        (60, "warned"), (105, "warned"),
        (3050, "warned"), (3120, "run"),
        (3200, "worked"), (3200, "warned"), (3250, "warned"),
    ]  # fmt: skip


def test_a_gpu_whose_work_is_not_known_protects_the_job() -> None:
    watch = Watch(acting())
    actions = [
        one for minute in range(100, 200) for one in watch.step(minute, holder(minute, unknown=1)).actions
    ]
    assert [one.kind for one in actions] == ["warned", "warned", "withheld"]
    assert actions[-1].reason == "its work on GPU n1/1 is not known"


def test_a_gpu_that_is_not_reported_any_more_protects_the_job() -> None:
    """Its node's agent stopped; the job works there."""
    watch = Watch(acting())
    for minute in range(118):
        watch.step(minute, holder(minute, 0))
    found = [one for minute in range(118, 400) for one in watch.step(minute, holder(minute)).actions]
    assert [one.kind for one in found] == ["withheld"]
    assert found[0].reason == "it had GPU n1/1 too, which is not reported as its own now"
    restarted = Watch(acting())
    restarted.steps.from_json(json.loads(json.dumps(watch.steps.to_json())))
    assert restarted.run(begin=401, until=500) == []


@pytest.mark.parametrize(
    ("allocated", "reason"),
    [
        (2.0, "Slurm has given it 2 GPUs, and 1 of them are reported"),
        (None, "how many GPUs it has is not known: no agent that reads Slurm reports it"),
    ],
)
def test_a_gpu_that_was_never_reported_protects_the_job(allocated: float | None, reason: str) -> None:
    """Its node was silent when the job began."""
    watch, found = Watch(acting()), []
    for minute in range(130, 200):
        idle = holder(minute)
        idle.allocated = allocated
        found += watch.step(minute, idle).actions
    assert [(one.kind, one.reason) for one in found] == [("warned", ""), ("withheld", reason)]


def idle_pod(minutes: float, *gpus: str, uid: str = "") -> IdleHolder:
    found = IdleHolder(POD, dict.fromkeys(gpus, 60 * minutes), set(gpus))
    found.uids = {uid} if uid else set()
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (idle_pod(0, "n1/0", uid="a"), idle_pod(0, "n1/0", uid="b")),
        (idle_pod(0, "n1/0"), idle_pod(0, "n2/0")),
        (idle_pod(0, "n1/0"), idle_pod(0, "n1/1")),
    ],
    ids=["another UID on the same GPU", "another node", "another GPU"],
)
def test_a_pod_that_was_recreated_is_another_one(before: IdleHolder, after: IdleHolder) -> None:
    """Its agent may go on with the idle time of the pod before it."""
    watch = Watch(acting(pod_command=("kubectl", "delete", "{pod}")))

    def step(minute: int, pod: IdleHolder) -> list[str]:
        uid = min(pod.uids, default="")
        return kinds(watch.step(minute, idle_pod(minute, *pod.held, uid=uid)))

    found = [(minute, kind) for minute in range(120) for kind in step(minute, before)]
    assert found == [(60, "warned"), (105, "warned")]
    found = [(minute, kind) for minute in range(120, 300) for kind in step(minute, after)]
    assert found == [(120, "replaced"), (180, "warned"), (225, "warned"), (241, "run")]


def test_a_pod_that_two_nodes_report_is_not_ended() -> None:
    """The samples of the node that had it are there for three minutes; on the new one it may be starting."""
    watch = Watch(acting(pod_command=("kubectl", "delete", "{pod}")))
    found = [
        action
        for minute in range(200)
        for action in watch.step(minute, idle_pod(minute, "n1/0", "n2/0")).actions
    ]
    assert [action.kind for action in found] == ["warned", "warned", "withheld"]
    assert found[-1].reason == "several nodes report a pod of this name: n1, n2"


def test_a_job_whose_gpus_all_change_at_once_begins_anew() -> None:
    watch = Watch(acting())
    assert watch.run(until=119)[-1] == (105, "warned")
    moved = IdleHolder(JOB, {"n1/7": 60 * 120.0}, {"n1/7"}, 1, user="ann")
    moved.place(JobNodes(frozenset({"n1"})), {})
    step = watch.step(120, moved)
    assert (kinds(step), moved.longest_idle) == (["replaced"], 0.0)


def test_a_gpu_that_the_job_has_left_does_not_protect_it() -> None:
    watch = Watch(acting())
    watch.step(0, holder(0, 0))
    left = []
    for minute in range(1, 200):
        left += [
            (minute, kind) for kind in kinds(watch.step(minute, holder(minute), accounted=["n1/0", "n1/1"]))
        ]
    assert left == [(60, "warned"), (105, "warned"), (121, "run")]
    restarting = Watch(acting())
    restarting.step(0, holder(0, 0))
    for minute in range(1, 200):  # a program that is restarted every ten minutes
        works = minute % 10 < 5
        idle = holder(minute, 0) if works else holder(minute)
        assert "run" not in kinds(restarting.step(minute, idle, accounted=["n1/0", "n1/1"]))


def test_work_ends_the_warnings_and_a_new_pause_begins_anew() -> None:
    watch = Watch(acting())
    watch.run(until=130)
    step = watch.step(135, holder(0))
    assert kinds(step) == ["worked"]
    assert [alert.ends_at for alert in step.alerts] == [NOW + 60 * 135] * 2
    assert kinds(watch.step(300, holder(125))) == ["warned"]


def test_a_holder_that_is_not_reported_for_a_while_is_not_warned_again() -> None:
    """Its agent was down; it has neither worked nor ended."""
    watch = Watch(acting())
    watch.run(until=125)
    assert watch.step(126) == PolicyStep([], [])
    assert kinds(watch.step(135, holder(135))) == []
    gone = watch.step(151)
    assert kinds(gone) == ["gone"]
    assert [alert.ends_at for alert in gone.alerts] == [NOW + 60 * 151] * 2


def test_when_a_dry_run_ends_the_holder_is_told_and_has_the_grace() -> None:
    """The warnings of a dry run say nothing of a command."""
    watch = Watch(PolicySteps(IdlePolicy(command=CANCEL)))
    assert watch.run(until=125)[-1] == (121, "would_run")
    restarted = Watch(acting())
    restarted.steps.from_json(json.loads(json.dumps(watch.steps.to_json())))
    watch.steps.use(IdlePolicy(command=CANCEL, is_dry_run=False))
    for one in (watch, restarted):
        changed = one.step(126, holder(126))
        assert kinds(changed) == ["warned"]
        *ended, told = changed.alerts
        assert [alert.ends_at is not None for alert in ended] == [True, True]
        assert dict(told.labels)["ends_after"] == "2h", "another alert, so another message"
        assert "after 120 minutes `scancel` ends it" in dict(told.annotations)["description"]
        assert one.run(begin=127, until=160) == [(127 + 15, "run")]


def test_a_policy_that_acts_sooner_is_told_first() -> None:
    watch = Watch(acting(act_after_seconds=86_400.0))
    assert watch.run(until=400) == [(60, "warned"), (105, "warned")]
    watch.steps.use(IdlePolicy(command=CANCEL, is_dry_run=False))
    assert watch.run(begin=401, until=430) == [(401, "warned"), (417, "run")]


def test_a_policy_that_acts_later_warns_nobody_again() -> None:
    watch = Watch(acting())
    watch.run(until=110)
    watch.steps.use(IdlePolicy(command=CANCEL, is_dry_run=False, act_after_seconds=9000.0))
    assert watch.run(begin=111, until=160) == [(150, "run")]


def test_an_alert_keeps_its_labels_while_it_fires_and_names_what_to_do() -> None:
    watch = Watch(acting())
    (first,) = watch.step(61, holder(61)).alerts
    for minute in range(75, 105, 10):
        watch.step(minute, holder(minute))
    again, second = watch.step(106, holder(106)).alerts
    assert (again.labels, again.starts_at) == (first.labels, first.starts_at)
    assert dict(second.labels) == {
        "alertname": "IdleGpu", "severity": "warning", "slurm_job": "17", "user": "ann", "warning": "2",
        "ends_after": "2h",
    }  # fmt: skip
    description = dict(second.annotations)["description"]
    assert "after 120 minutes `scancel` ends it, at least 15 minutes after the last warning" in description
    assert dict(second.annotations)["summary"] == "job 17 has left 1 GPU idle for 106 minutes"


@pytest.mark.parametrize(
    ("idle", "reason"),
    [
        (holder(130), "user ann"),
        (holder(130, key=HolderKey("job", "18"), partition="debug,gpu"), "partition debug"),
        (holder(130, key=HolderKey("pod", "a", "prod")), "namespace prod"),
        (holder(130, key=POD, label_keep="true"), "label keep=true"),
        (holder(130, key=POD, label_tier="7"), "label tier=7"),
    ],
    ids=["user", "partition", "namespace", "label with value", "any value of a label"],
)
def test_exceptions(idle: IdleHolder, reason: str) -> None:
    exceptions = IdleExceptions(
        frozenset({"ann"}),
        frozenset({"debug"}),
        frozenset({"prod"}),
        frozenset({("label_keep", "true"), ("label_tier", "")}),
    )
    watch = Watch(acting(pod_command=("x", "{pod}"), exceptions=exceptions))
    first, second = watch.step(0, idle), watch.step(1, idle)
    assert [(action.kind, action.reason) for action in first.actions] == [("excepted", reason)]
    assert (second.actions, first.alerts) == ([], []), "said once, and nobody is warned"


def test_one_series_that_says_so_is_enough_for_an_exception() -> None:
    """Somebody else's series for the same job must not take the exception away."""
    watch = Watch(acting(exceptions=IdleExceptions(users=frozenset({"ann"}))))
    idle = holder(130)
    idle.described_by.append({"user": "eve"})
    idle.user = "eve"
    assert kinds(watch.step(0, idle)) == ["excepted"]


def test_a_job_that_may_be_excepted_is_not_ended() -> None:
    watch = Watch(acting(exceptions=IdleExceptions(partitions=frozenset({"debug"}))))
    found = [one for minute in range(130, 200) for one in watch.step(minute, holder(minute)).actions]
    assert [one.kind for one in found] == ["warned", "withheld"]
    assert found[1].reason == "its partition is not known, so it may be one of the exceptions"


@pytest.mark.parametrize(("known", "last"), [(False, "withheld"), (True, "run")])
def test_a_pod_whose_labels_are_not_known_may_be_excepted(known: bool, last: str) -> None:
    """The kubelet does not answer: the agent has the pod's name from the folder of its logs."""
    exceptions = IdleExceptions(labels=frozenset({("label_keep", "true")}))
    watch = Watch(acting(pod_command=("kubectl", "delete", "{pod}"), exceptions=exceptions))
    found = []
    for minute in range(130, 200):
        idle = holder(minute, key=POD)
        idle.are_labels_known = known
        found += kinds(watch.step(minute, idle))
    assert found == ["warned", last]


def test_an_unverified_series_does_not_show_that_a_job_is_no_exception() -> None:
    """Whoever has a write token could name another user for a job of which nothing else is known."""
    watch = Watch(acting(exceptions=IdleExceptions(users=frozenset({"root"}))))
    found = []
    for minute in range(130, 200):
        idle = holder(minute)
        idle.user, idle.described_by = "", [{"user": "eve"}]
        found += watch.step(minute, idle).actions
    assert [one.kind for one in found] == ["warned", "withheld"]
    assert found[1].reason == "its user is not known, so it may be one of the exceptions"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"het_job": "16"}, "it is a part of the heterogeneous job 16, whose other parts may work"),
        ({"other_user": "eve"}, "its user is not certain: ann or eve"),
        ({"user": ""}, "its user is not known, and is a word of the command"),
    ],
)
def test_a_job_that_the_command_may_confuse_with_others_is_not_ended(
    changes: dict[str, str], reason: str
) -> None:
    watch, found = Watch(PolicySteps(IdlePolicy(command=(*CANCEL, "{user}"), is_dry_run=False))), []
    for minute in range(130, 200):
        idle = holder(minute)
        for name, value in changes.items():
            setattr(idle, name, value)
        found += watch.step(minute, idle).actions
    assert [(one.kind, one.reason) for one in found[1:]] == [("withheld", reason)]


def test_the_command_and_the_advice_name_one_task_of_an_array() -> None:
    watch = Watch(acting())
    steps = []
    for minute in range(130, 200):
        idle = holder(minute)
        idle.array_task = "17_3"
        steps.append(watch.step(minute, idle))
    assert [one.command for step in steps for one in step.actions if one.kind == "run"] == [("scancel", "17_3")]
    assert dict(steps[0].alerts[0].annotations)["next_step"] == "scancel 17_3"


@pytest.mark.parametrize("name", ["--signal=KILL", "1;reboot", "$(id)", "17 18", "-u root", ""])
def test_a_name_that_is_no_job_number_never_gets_into_a_command(name: str) -> None:
    watch, found = Watch(acting()), []
    for minute in range(130, 200):
        found += kinds(watch.step(minute, holder(minute, key=HolderKey("job", name))))
    assert found == ["warned", "refused"]


def test_a_command_that_fails_is_tried_three_times() -> None:
    watch, runs = Watch(acting()), 0
    for minute in range(125, 200):
        ran = "run" in kinds(watch.step(minute, holder(minute)))
        runs += ran
        if ran:
            watch.steps.command_failed(JOB)
    assert runs == 3


def test_a_state_that_was_not_written_by_this_version_is_left_out() -> None:
    steps = acting()
    steps.from_json({"episodes": [{"kind": "job"}, {"kind": 5, "name": None}, 7], "holders": [{}, None]})
    steps.from_json({})
    assert kinds(Watch(steps).step(125, holder(125))) == ["warned"]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "idle.yml"
    path.write_text(text)
    return path


def test_the_file(tmp_path: Path) -> None:
    policy = load_policy(
        write(
            tmp_path,
            """
warn_after: [90m, 30m]
act_after: 3h
grace: 20m
command: [scancel, '{job}', --user, '{user}']
pod_command: [kubectl, -n, '{namespace}', delete, pod, '{pod}']
dry_run: false
exceptions:
  users: [root]
  labels: [example.org/keep=true, tier]
""",
        )
    )
    assert policy.warn_after_seconds == (1800, 5400)
    assert (policy.act_after_seconds, policy.grace_seconds, policy.is_dry_run) == (10_800, 1200, False)
    assert policy.exceptions.labels == {("label_example_org_keep", "true"), ("label_tier", "")}
    assert load_policy(write(tmp_path, "dry_run: true")) == IdlePolicy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("warn_after: [soon]", "'soon' is not a duration"),
        ("warn_after: [5m]", "5m is shorter than 15m"),
        ("act_after: 60m", "must be later than the last of warn_after"),
        ("command: scancel", "must be a list of words"),
        ("command: [scancel, '{pid}']", "{pid} is not known here; there are {job}"),
        ("dry_run: maybe", "'maybe' is not true or false"),
        ("exception: {}", "unknown key"),
        ("grace: 1m", "1m is shorter than 5m"),
        ("trust_store: perhaps", "'perhaps' is not true or false"),
        ("exceptions: {user: [a]}", "unknown key"),
        ("- a", "an idle policy is a mapping"),
    ],
)
def test_a_mistake_names_file_line_and_reason(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_policy(write(tmp_path, text))
    assert words in str(refused.value)
    assert str(tmp_path / "idle.yml") in str(refused.value)


def test_the_audit_log_is_bounded_and_private(tmp_path: Path) -> None:
    before = LIMITS_REACHED.counts().get("idle_audit_max_bytes", 0)
    audit = PolicyAudit(tmp_path / "audit.jsonl", max_bytes=2_000)
    (action, *_) = Watch(PolicySteps(IdlePolicy(command=CANCEL))).step(0, holder(125)).actions
    for number in range(50):
        assert audit.write(action, NOW + number)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["audit.jsonl", "audit.jsonl.1"]
    assert all(path.stat().st_size <= 2_000 for path in files)
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    last = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["action"], last["name"], last["user"], last["idle_minutes"]) == ("warned", "17", "ann", 125.0)
    assert LIMITS_REACHED.counts()["idle_audit_max_bytes"] > before


def every_kind() -> Iterator[PolicyAction]:
    """One action of each kind, as a policy decides them."""
    ended = Watch(acting())
    for minute in range(125):
        yield from ended.step(minute, holder(minute)).actions
    yield from ended.step(126, holder(0)).actions
    silent = Watch(acting())
    silent.step(0, holder(125))
    yield from silent.step(30).actions
    moved = Watch(acting())
    moved.step(0, holder(125))
    yield from moved.step(1, IdleHolder(JOB, {"n1/9": 1.0}, {"n1/9"})).actions
    refused, withheld = Watch(acting()), Watch(acting())
    for minute in range(125, 160):
        yield from refused.step(minute, holder(minute, key=HolderKey("job", "-u root"))).actions
        yield from withheld.step(minute, holder(minute, unknown=1)).actions
    yield from Watch(acting(exceptions=IdleExceptions(users=frozenset({"ann"})))).step(0, holder(125)).actions
    dry = Watch(PolicySteps(IdlePolicy(command=CANCEL)))
    for minute in range(125, 160):
        yield from dry.step(minute, holder(minute)).actions


def test_every_decision_is_in_the_audit_log_with_the_facts_it_used(tmp_path: Path) -> None:
    audit = PolicyAudit(tmp_path / "audit.jsonl", max_bytes=1 << 20)
    for action in every_kind():
        assert audit.write(action, NOW)
    rows = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {row["action"] for row in rows} == set(get_args(ActionKind))
    for row in rows:
        assert row["gpu_count"] == len(row["idle_minutes_by_gpu"]) > 0
        assert row["instances"] == ["n1"]
        is_told = row["action"] != "excepted"
        assert bool(row["warned_at"]) is is_told
        assert {"delivered_at", "watched_minutes"} <= row.keys()
        assert bool(row.get("reason")) is (row["action"] in ("withheld", "refused", "excepted"))
    [run] = [row for row in rows if row["action"] == "run"]
    assert run["idle_minutes_by_gpu"] == {"n1/0": 121.0}
    assert (run["slurm_gpus"], run["slurm_nodes"]) == (1, ["n1"])
    assert (sorted(run["warned_at"]), run["watched_minutes"]) == (["1", "2"], 15.0)
    assert run["delivered_at"] is not None
    [withheld] = [row for row in rows if row["action"] == "withheld"]
    assert withheld["idle_minutes_by_gpu"] == {"n1/1": None, "n1/0": withheld["idle_minutes"]}


def test_an_entry_of_the_audit_log_is_bounded(tmp_path: Path) -> None:
    gpus = {f"{'n' * 5000}/{number}": 60 * 125.0 for number in range(2000)}
    idle = IdleHolder(HolderKey("pod", "p" * 5000, "n" * 5000), gpus, set(gpus), user="u" * 5000)
    audit = PolicyAudit(tmp_path / "audit.jsonl", max_bytes=1 << 20)
    (action,) = Watch(acting()).step(0, idle).actions
    assert audit.write(action, NOW)
    text = (tmp_path / "audit.jsonl").read_text()
    assert len(text) < 64 << 10
    assert json.loads(text)["gpu_count"] == 2000


def test_a_reason_that_comes_and_goes_is_recorded_once() -> None:
    """Otherwise a node that reports now and then would push other entries out of the audit log."""
    watch, found = Watch(acting()), []
    for minute in range(125, 900):
        found += kinds(watch.step(minute, holder(minute, unknown=minute % 30)))
    assert found.count("withheld") <= 21


def test_an_audit_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    audit = PolicyAudit(tmp_path / "missing" / "audit.jsonl", max_bytes=2_000)
    (action, *_) = Watch(PolicySteps(IdlePolicy())).step(0, holder(61)).actions
    assert not audit.write(action, NOW)
