"""The rules of judgement: whom a finding names, since when, what it says, and how many there are."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from gpuscope.history.promql.parse import parse
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.facts import Gone, GoneTarget, Missing, Sample, sort_samples
from gpuscope.judge.checks.finding import FindingOwner
from gpuscope.judge.checks.finding_texts import (
    FINDING_TEXTS,
    NOT_FINDINGS,
    STEP_TEXTS,
    fill,
    join_indices,
    place_values,
)
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.judge.checks.judgement import Judgement
from tests.fakes import Keywords
from tests.health.fleets import HOUR, NOW, gpu, gpu_labels, node, of_gpu, process
from tests.health.judged import evaluate, findings, found, states


def state(samples: Iterable[Sample], index: str = "0") -> str:
    return states(samples)["n1:9400", f"GPU-n1-{index}"].state.value


def test_alice_with_one_of_four_at_work_is_found_beside_busy_bob() -> None:
    samples = [*node(), *(sample for index in "01234567" for sample in gpu(index))]
    samples += process("0", user="alice")
    for index in "123":
        samples += process(index, user="alice", idle_for=HOUR)
    for index in "4567":
        samples += process(index, "9", user="bob")
    (finding,) = found(samples)
    assert (finding.kind, finding.owner.name, finding.gpus) == ("only_some_work", "alice", ("1", "2", "3"))
    assert finding.args == {"working": "0"}
    assert finding.why == "alice works on GPU 0 only and leaves GPU 1–3 idle"
    assert finding.since == NOW - HOUR


def test_a_dip_of_the_working_gpu_does_not_hide_the_idle_ones() -> None:
    samples = [*node(), *gpu("0"), *gpu("1")]
    samples += process("0", user="alice", idle_for=5)
    samples += process("1", user="alice", idle_for=HOUR)
    assert [finding.kind for finding in found(samples)] == ["only_some_work"]


def test_a_pause_of_less_than_a_minute_is_not_uneven_work() -> None:
    samples = [*node(), *gpu("0"), *gpu("1"), *process("0", user="a"), *process("1", user="a", idle_for=59)]
    assert found(samples) == []


def test_a_notebook_beside_the_same_persons_training_is_judged_apart() -> None:
    samples = [*node(), *gpu("0"), *gpu("1")]
    samples += process("0", "1", user="a", command="python3")
    samples += process("1", "2", user="a", command="ipykernel_launcher", idle_for=HOUR)
    (finding,) = found(samples)
    assert (finding.kind, finding.gpus) == ("held_idle", ("1",))


def test_five_notebooks_of_five_people_are_five_findings_named_by_their_pods() -> None:
    people = ("dana", "eve", "finn", "gita", "hugo")
    samples = node()
    for index, person in enumerate(people):
        pod: Keywords = {"user": "jovyan", "namespace": "hub", "pod": f"jupyter-{person}"}
        samples += [*gpu(str(index)), *process(str(index), idle_for=HOUR, **pod)]
    findings = found(samples)
    assert {finding.owner for finding in findings} == {
        FindingOwner("pod", "hub", f"jupyter-{person}") for person in people
    }
    assert len(findings) == 5
    assert not any("jovyan" in finding.why + finding.next for finding in findings)
    assert all(finding.owner.name in finding.next for finding in findings)


def test_idle_since_is_the_last_work_not_the_start_of_the_process() -> None:
    samples = [*node(), *gpu("0"), *process("0", user="a", started=NOW - 3 * HOUR, idle_for=1200)]
    (finding,) = found(samples)
    assert (finding.kind, finding.since) == ("held_idle", NOW - 1200)


def test_gpus_that_went_idle_hours_apart_are_two_findings() -> None:
    samples = [*node(), *gpu("0"), *gpu("1"), *gpu("2")]
    for index, idle in (("0", 3 * HOUR), ("1", 3 * HOUR - 60), ("2", 1200)):
        samples += process(index, index, user="a", idle_for=idle)
    assert [(one.gpus, one.since) for one in found(samples)] == [
        (("0", "1"), NOW - 3 * HOUR),
        (("2",), NOW - 1200),
    ]


def test_a_session_of_three_minutes_is_no_finding() -> None:
    assert found([*node(), *gpu("0"), *process("0", user="a", idle_for=180)]) == []


@pytest.mark.parametrize(("xid", "kind", "shown"), [
    (13, "xid_application", "idle"), (45, None, "idle"), (79, "xid_hardware", "sick"),
    (119, "xid_driver", "sick"), (74, "xid_nvlink", "sick"), (63, None, "idle"),
])  # fmt: skip
def test_an_xid_is_judged_by_its_meaning(xid: int, kind: str | None, shown: str) -> None:
    samples = [*node(), *gpu("0"), of_gpu("0", "xid_age_seconds", 60.0, xid=str(xid))]
    assert [finding.kind for finding in found(samples)] == ([kind] if kind else [])
    assert state(samples) == shown


def test_a_program_xid_names_the_programs_owner() -> None:
    samples = [*node(), *gpu("0"), *process("0", user="a", slurm_job="17")]
    samples.append(of_gpu("0", "xid_age_seconds", 60.0, xid="31"))
    (finding,) = found(samples)
    assert (finding.severity, finding.owner) == ("info", FindingOwner("job", "", "17", "a"))


def lost_gpus(*indices: str) -> list[Sample]:
    samples = node(gpus_seen=8.0 - len(indices), gpus_expected=8.0)
    for index in indices:
        samples += gpu(index, up=0.0)
        samples.append(of_gpu(index, "xid_age_seconds", 300.0, xid="79"))
    return samples


def test_a_lost_gpu_names_its_xid_its_job_and_the_right_action() -> None:
    samples, judgement = lost_gpus("3"), Judgement()
    evaluate(judgement, samples)
    owners = {("n1:9400", "GPU-n1-3"): FindingOwner("job", "", "17", "a")}
    nodes = sort_samples(samples, NOW).nodes
    (finding,) = FindingMaker(nodes, owners_before=owners).make(judgement.open_now())
    assert (finding.kind, finding.args) == ("gpu_lost", {"xid": 79})
    assert finding.owner == FindingOwner("job", "", "17", "a")
    assert "power-cycle" in finding.next
    assert "nvidia-smi -r" not in finding.next


def test_two_lost_gpus_are_two_findings() -> None:
    assert [finding.kind for finding in found(lost_gpus("2", "5"))] == ["gpu_lost", "gpu_lost"]


def test_gpus_missing_beyond_the_lost_ones_are_counted() -> None:
    samples = lost_gpus("2")
    samples.append(("gpuscope_gpus_seen", {"instance": "n1:9400"}, 5.0))
    missing = next(finding for finding in found(samples) if finding.kind == "gpus_missing")
    assert missing.args == {"count": 2, "expected": 8}


HOT = of_gpu("0", "throttle_reason", 1.0, reason="hw_thermal_slowdown")
NARROW = [of_gpu("0", "pcie_link_width", 8.0), of_gpu("0", "pcie_link_width_max", 16.0)]


def test_since_of_throttling_and_pcie_is_when_they_began() -> None:
    judgement = Judgement()
    healthy, bad = [*node(), *gpu("0")], [*node(), *gpu("0"), HOT, *NARROW]
    evaluate(judgement, healthy, NOW - 100)
    for at in (NOW - 90, NOW - 65, NOW - 40, NOW - 15):
        evaluate(judgement, bad, at)
    assert {finding.kind: finding.since for finding in findings(judgement, bad)} == {
        "throttled": NOW - 90,
        "pcie_degraded": NOW - 90,
    }


def test_what_was_there_at_the_first_evaluation_began_when_the_history_says() -> None:
    judgement, bad = Judgement(), [*node(), *gpu("0"), HOT]
    evaluate(judgement, bad)
    (episode,) = judgement.open_now()
    assert episode.since is None
    began = {episode.condition.subject: NOW - 7200}
    assert [one.since for one in judgement.open_now(began)] == [NOW - 7200]
    began = {episode.condition.subject: NOW - 300}
    assert [one.since for one in judgement.open_now(began)] == [NOW - 300], "a filled-in history dates it anew"


def test_throttling_that_flickers_keeps_its_beginning() -> None:
    judgement = Judgement()
    healthy, bad = [*node(), *gpu("0")], [*node(), *gpu("0"), HOT]
    for seconds in range(0, 60, 10):
        evaluate(judgement, bad if seconds % 20 else healthy, NOW + seconds)
    evaluate(judgement, bad, NOW + 60)
    (finding,) = findings(judgement, bad)
    assert finding.since == NOW + 10


def test_a_check_that_cannot_be_evaluated_keeps_its_result_for_a_minute() -> None:
    judgement, bad = Judgement(), [*node(), *gpu("0"), *NARROW]
    evaluate(judgement, bad)
    judgement.fail(CHECKS["pcie_degraded"], "timeout", NOW + 30)
    assert [one.kind for one in findings(judgement, bad)] == ["pcie_degraded"]
    judgement.fail(CHECKS["pcie_degraded"], "timeout", NOW + 90)
    assert findings(judgement, bad) == []
    assert judgement.failed == {"pcie_degraded": "timeout"}


def test_ids_are_stable_and_different() -> None:
    samples = [*lost_gpus("2", "5"), *gpu("0"), HOT, *NARROW, *process("0", user="a", idle_for=HOUR)]
    first, again = found(samples), found(list(reversed(samples)))
    assert {finding.id for finding in first} == {finding.id for finding in again}
    assert len({finding.id for finding in first}) == len(first) == 5


def test_most_severe_first_then_oldest() -> None:
    samples = [*lost_gpus("2"), *gpu("0"), *NARROW]
    samples += [*gpu("1"), *process("1", "1", user="a", idle_for=HOUR)]
    samples += [*gpu("3"), *process("3", "3", user="b", idle_for=3 * HOUR)]
    order = [(finding.severity.value, finding.owner.name) for finding in found(samples)]
    assert order == [("critical", ""), ("warning", ""), ("info", "b"), ("info", "a")]


def test_a_gone_node_is_one_finding_and_its_gpus_have_none() -> None:
    gone = Missing(
        nodes={"n1:9400": Gone(NOW - 300, "connection refused")},
        targets=[GoneTarget(job="j", instance="n2:9400", url="", gone=Gone(NOW - 60, "timeout"))],
    )
    there: list[Sample] = [
        ("gpuscope_agent_info", {"instance": one, "job": "j", "node": one[:2]}, 1.0)
        for one in ("n1:9400", "n3:9400")
    ]
    up: list[Sample] = [
        ("up", {"instance": one, "job": job}, value)
        for one, job, value in (
            ("n1:9400", "j", 0.0), ("n2:9400", "j", 0.0), ("n3:9400", "j", 1.0), ("pg:9187", "db", 0.0),
        )
    ]  # fmt: skip
    lost = of_gpu("0", "up", 0.0)
    shown = [(one.kind, one.node, one.why) for one in found([*there, *up, lost], gone)]
    assert shown == [
        ("node_down", "n1", "No data from this node: connection refused"),
        ("target_down", "n2:9400", "Scrape target does not answer: timeout"),
    ]


def mig(board_state: Iterable[Sample] = ()) -> list[Sample]:
    labels = {"instance": "n1:9400", "gpu": "0_7_0", "uuid": "MIG-7"}
    return [
        *node(),
        *gpu("0"),
        *board_state,
        ("gpuscope_mig_info", {**labels, "parent_uuid": "GPU-n1-0", "profile": "1g.10gb"}, 1.0),
        ("gpuscope_gpu_sm_active_ratio", labels, 0.0),
        ("gpuscope_process_memory_bytes", {**labels, "pid": "7", "pod": "p", "namespace": "ns"}, 1.0),
    ]


def test_a_split_boards_trouble_is_that_of_its_instances() -> None:
    assert {key[1]: one.state.value for key, one in states(mig([HOT])).items()} == {
        "GPU-n1-0": "throttled",
        "MIG-7": "throttled",
    }
    assert states(mig())["n1:9400", "GPU-n1-0"].state == "held"


def test_unknown_activity_is_not_called_idle() -> None:
    samples = [*node(), *gpu("0"), ("gpuscope_process_memory_bytes", {**gpu_labels("0"), "pid": "7"}, 1.0)]
    assert state(samples) == "busy"
    assert found(samples) == []


def test_every_kind_has_its_texts_and_its_evidence_parses() -> None:
    assert CHECKS.keys() - NOT_FINDINGS == {key.partition(".")[0] for key in FINDING_TEXTS} - {"past"}
    assert CHECKS.keys() > NOT_FINDINGS
    samples = [*lost_gpus("2"), *gpu("0"), HOT, *NARROW, *process("0", user='a"}', idle_for=HOUR)]
    for finding in found(samples):
        parse(finding.evidence)
        assert finding.next_key in STEP_TEXTS
        assert "{" not in finding.why + finding.next


def test_texts_are_filled_as_text() -> None:
    assert fill("{owner} and {other}", {"owner": "{gpus}"}) == "{gpus} and {other}"
    assert join_indices(["3", "0", "1", "2", "7", "0_7_0"]) == "0–3, 7, 0_7_0"


@pytest.mark.parametrize(
    ("gpus", "shown", "argument"),
    [
        (["3"], "3", "3"),
        (["10", "2", "9"], "2, 9, 10", "2,9,10"),
        (["0_7_0", "0_9_0", "1"], "1, 0_7_0, 0_9_0", "0,1"),
    ],
)
def test_a_command_gets_the_gpus_as_nvidia_smi_takes_them(gpus: list[str], shown: str, argument: str) -> None:
    assert place_values(gpus, "ann") == {"gpus": shown, "gpu_list": argument, "owner": "ann"}


def test_no_advice_has_a_word_instead_of_a_gpu() -> None:
    assert [text for text in STEP_TEXTS.values() if re.search(r"-i GPU|GPU -", text)] == []
