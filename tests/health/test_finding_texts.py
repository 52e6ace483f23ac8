"""The sentences of findings: every name in them is filled, nobody is asked who is not known."""

from __future__ import annotations

import pytest

from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding import NO_OWNER, FindingOwner
from gpuscope.judge.checks.finding_texts import (
    FINDING_TEXTS,
    SOURCE_STEPS,
    STEP_KEYS,
    STEP_TEXTS,
    fill,
    step_key,
)
from tests.health.fleets import gpu, gpu_labels, node
from tests.health.judged import found

KINDS = sorted({key.removeprefix("past.").partition(".")[0] for key in FINDING_TEXTS})


@pytest.mark.parametrize("kind", KINDS)
def test_a_finding_over_time_has_a_value_for_each_name(kind: str) -> None:
    text = FINDING_TEXTS.get(f"past.{kind}") or FINDING_TEXTS[kind]
    assert "{" not in fill(text, {"gpus": "0", "owner": "alice", "count": 1})
    assert kind in STEP_TEXTS


def test_nobody_is_asked_who_is_not_known() -> None:
    alice = FindingOwner("user", "", "alice")
    asking = [key for key, text in STEP_TEXTS.items() if "{owner}" in text]
    assert "held_idle" in asking
    for key in asking:
        assert step_key(key, alice) == key
        assert step_key(key, NO_OWNER) == "unknown_owner"
    assert step_key("gpu_lost", NO_OWNER) == "gpu_lost"


def test_an_idle_process_without_an_owner_is_looked_for() -> None:
    labels = {**gpu_labels("0"), "pid": "4000001"}
    idle = [
        ("gpuscope_process_memory_bytes", labels, 1e9),
        ("gpuscope_process_active", labels, 0.0),
        ("gpuscope_process_idle_seconds", labels, 3600.0),
    ]
    (finding,) = found([*node(), *gpu("0"), *idle])
    assert (finding.kind, finding.owner, finding.next_key) == ("held_idle", NO_OWNER, "unknown_owner")
    assert finding.why == "GPU 0 held by an owner who is not known, not used"
    assert "4000001" not in finding.why + finding.next
    assert "ask" not in finding.next


@pytest.mark.parametrize("source", SOURCE_STEPS)
def test_a_source_that_is_down_says_what_to_do_for_it(source: str) -> None:
    down = ("gpuscope_source_up", {"instance": "n1:9400", "source": source}, 0.0)
    findings = [one for one in found([*node(), *gpu("0"), down]) if one.kind == "source_down"]
    assert [(one.next_key, one.next) for one in findings] == [(STEP_KEYS[source], SOURCE_STEPS[source])]
    assert STEP_TEXTS[STEP_KEYS[source]] == SOURCE_STEPS[source]
    is_of_the_driver = source in ("nvml", "nvidia-smi")
    assert ("nvidia-smi" in findings[0].next, "reboot" in findings[0].next) == (
        is_of_the_driver,
        is_of_the_driver,
    )


def test_another_source_has_the_general_step() -> None:
    down = ("gpuscope_source_up", {"instance": "n1:9400", "source": "rack-power"}, 0.0)
    (finding,) = [one for one in found([*node(), *gpu("0"), down]) if one.kind == "source_down"]
    assert finding.next == CHECKS["source_down"].next_step


def test_a_gpu_that_hangs_is_not_called_idle() -> None:
    for key in ("hung", "past.hung"):
        assert "idle" not in FINDING_TEXTS[key]
        assert "little power" in FINDING_TEXTS[key]
