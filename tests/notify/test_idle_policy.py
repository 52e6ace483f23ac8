"""The idle policy: who is warned when, what runs, who is excepted, and an audit log that has everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuscope.errors import UsageError
from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.idle_policy.idle_holders import HolderKey, IdleHolder
from gpuscope.notify.idle_policy.policy_audit import PolicyAudit
from gpuscope.notify.idle_policy.policy_file import IdleExceptions, IdlePolicy, load_policy
from gpuscope.notify.idle_policy.policy_steps import PolicyStep, PolicySteps

JOB = HolderKey("job", "17")
POD = HolderKey("pod", "train-0", "ml")
CANCEL = ("scancel", "{job}")
NOW = 1_800_000_000.0


def holder(
    minutes: float, *others: float, key: HolderKey = JOB, gpus: int | None = None, **more: str
) -> IdleHolder:
    idle = {f"n1/{number}": 60 * value for number, value in enumerate((minutes, *others))}
    found = IdleHolder(key, idle, len(idle) if gpus is None else gpus, user="ann" if key is JOB else "")
    found.partition = more.pop("partition", "")
    found.labels = more
    return found


def kinds(step: PolicyStep) -> list[str]:
    return [action.kind for action in step.actions]


def run_minutes(steps: PolicySteps, *, until: int, every: int = 5) -> list[tuple[int, str]]:
    """An idle holder, minute by minute: what happens when."""
    found = []
    for minute in range(0, until + 1, every):
        step = steps.step([holder(minute)], NOW + 60 * minute)
        found += [(minute, kind) for kind in kinds(step)]
    return found


def test_warned_after_60_and_105_minutes_and_the_command_after_120() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    assert run_minutes(steps, until=300) == [(60, "warned"), (105, "warned"), (120, "run")]


def test_a_dry_run_is_the_default() -> None:
    step = PolicySteps(IdlePolicy(command=CANCEL)).step([holder(125)], NOW)
    assert kinds(step) == ["warned", "warned", "would_run"]
    assert step.actions[-1].command == ("scancel", "17")


def test_without_a_command_nothing_runs() -> None:
    assert kinds(PolicySteps(IdlePolicy(is_dry_run=False)).step([holder(300)], NOW)) == ["warned", "warned"]


def test_a_job_that_works_on_one_gpu_is_warned_but_not_ended() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    step = steps.step([holder(300, 0)], NOW)
    assert kinds(step) == ["warned", "warned"]
    assert step.actions[0].gpus == ("n1/0",)


def test_a_gpu_whose_work_is_not_known_protects_the_job() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    assert kinds(steps.step([holder(300, gpus=2)], NOW)) == ["warned", "warned"]


def test_work_ends_the_warnings_and_a_new_pause_begins_anew() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    run_minutes(steps, until=130)
    step = steps.step([holder(0)], NOW + 60 * 135)
    assert kinds(step) == ["worked"]
    assert [alert.ends_at for alert in step.alerts] == [NOW + 60 * 135] * 2
    assert kinds(steps.step([holder(125)], NOW + 60 * 300)) == ["warned", "warned", "run"]


def test_a_holder_that_is_not_reported_for_a_while_is_not_warned_again() -> None:
    """Its agent was down; it has neither worked nor ended."""
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    run_minutes(steps, until=125)
    assert steps.step([], NOW + 60 * 126) == PolicyStep([], [])
    assert kinds(steps.step([holder(135)], NOW + 60 * 135)) == []
    gone = steps.step([], NOW + 60 * 151)
    assert kinds(gone) == ["gone"]
    assert [alert.ends_at for alert in gone.alerts] == [NOW + 60 * 151] * 2


def test_what_a_dry_run_would_have_run_runs_when_it_is_none_any_more() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL))
    assert run_minutes(steps, until=125)[-1] == (120, "would_run")
    restarted = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    restarted.from_json(json.loads(json.dumps(steps.to_json())))
    steps.use(IdlePolicy(command=CANCEL, is_dry_run=False))
    for one in (steps, restarted):
        assert kinds(one.step([holder(126)], NOW + 60 * 126)) == ["run"]
        assert kinds(one.step([holder(127)], NOW + 60 * 127)) == []


def test_an_alert_keeps_its_labels_while_it_fires_and_names_what_to_do() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    (first,) = steps.step([holder(61)], NOW).alerts
    again, second = steps.step([holder(106)], NOW + 60 * 45).alerts
    assert (again.labels, again.starts_at) == (first.labels, first.starts_at)
    assert dict(second.labels) == {
        "alertname": "IdleGpu", "severity": "warning", "slurm_job": "17", "user": "ann", "warning": "2",
    }  # fmt: skip
    assert "after 120 minutes `scancel` ends it" in dict(second.annotations)["description"]
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
    steps = PolicySteps(
        IdlePolicy(command=CANCEL, pod_command=("x", "{pod}"), is_dry_run=False, exceptions=exceptions)
    )
    first, second = (steps.step([idle], NOW), steps.step([idle], NOW + 60))
    assert [(action.kind, action.reason) for action in first.actions] == [("excepted", reason)]
    assert (second.actions, first.alerts) == ([], []), "said once, and nobody is warned"


@pytest.mark.parametrize("name", ["--signal=KILL", "1;reboot", "$(id)", "17 18", "-u root", ""])
def test_a_name_that_is_no_job_number_never_gets_into_a_command(name: str) -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    step = steps.step([holder(130, key=HolderKey("job", name))], NOW)
    assert kinds(step) == ["warned", "warned", "refused"]


def test_a_command_that_fails_is_tried_three_times() -> None:
    steps = PolicySteps(IdlePolicy(command=CANCEL, is_dry_run=False))
    runs = 0
    for minute in range(125, 200):
        ran = "run" in kinds(steps.step([holder(minute)], NOW + 60 * minute))
        runs += ran
        if ran:
            steps.command_failed(JOB)
    assert runs == 3


def test_a_restart_repeats_nothing() -> None:
    policy = IdlePolicy(command=CANCEL, is_dry_run=False)
    before, after = PolicySteps(policy), PolicySteps(policy)
    before.step([holder(125)], NOW)
    after.from_json(json.loads(json.dumps(before.to_json())))
    step = after.step([holder(126)], NOW + 60)
    assert step.actions == []
    assert len(step.alerts) == 2, "the notifier hears that they still fire"
    after.from_json([{"kind": "job"}, {"kind": 5, "name": None}])


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
    assert (policy.act_after_seconds, policy.is_dry_run) == (10_800, False)
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
    (action, *_) = PolicySteps(IdlePolicy(command=CANCEL)).step([holder(125)], NOW).actions
    for number in range(50):
        assert audit.write(action, NOW + number)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["audit.jsonl", "audit.jsonl.1"]
    assert all(path.stat().st_size <= 2_000 for path in files)
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    last = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["action"], last["name"], last["user"], last["idle_minutes"]) == ("warned", "17", "ann", 125.0)
    assert LIMITS_REACHED.counts()["idle_audit_max_bytes"] > before


def test_an_audit_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    audit = PolicyAudit(tmp_path / "missing" / "audit.jsonl", max_bytes=2_000)
    (action, *_) = PolicySteps(IdlePolicy()).step([holder(61)], NOW).actions
    assert not audit.write(action, NOW)
