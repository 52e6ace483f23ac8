"""Checks whose metrics a GPU does not have are left out before they are computed; none of them could hold."""

from __future__ import annotations

import pytest

from gpuscope.health.check import Check, Subject, metric_names
from gpuscope.health.checks import LIVE_CHECKS
from gpuscope.health.facts import LABELLED, GpuFacts
from gpuscope.health.finding_texts import NOT_FINDINGS
from gpuscope.health.findings import USE_KINDS, checks_that_may_hold

NOW = 1_000_000.0
GPU_CHECKS = [
    check
    for check in LIVE_CHECKS
    if check.subject is Subject.GPU and check.kind not in USE_KINDS and check.kind not in NOT_FINDINGS
]
METRICS = frozenset(name for check in LIVE_CHECKS for name in metric_names(check))


@pytest.mark.parametrize("value", [0.0, 1.0, 3.0, 1e12, NOW])
@pytest.mark.parametrize("check", GPU_CHECKS, ids=lambda check: check.kind)
def test_a_check_without_its_metrics_does_not_hold(check: Check, value: float) -> None:
    """With every other metric present, whatever its value."""
    others = METRICS - metric_names(check)
    plain = dict.fromkeys(others - LABELLED.keys(), value)
    labels = ("gpu", "memory", "79", "13", "slowdown", "enforced", "hw_thermal", "uncorrected,volatile")
    by_label = {name: dict.fromkeys(labels, value) for name in others & LABELLED.keys()}
    gpu = GpuFacts({"uuid": "u", "gpu": "0", "instance": "i"}, plain, by_label)
    assert check.live is not None
    assert not check.live(gpu, NOW)


def test_only_checks_with_a_metric_are_computed() -> None:
    assert {check.kind for check in checks_that_may_hold(frozenset({"gpuscope_gpu_up"}))} >= {"gpu_lost"}
    assert {check.kind for check in checks_that_may_hold(METRICS)} == {check.kind for check in GPU_CHECKS}
    usual = frozenset({"gpuscope_gpu_up", "gpuscope_gpu_power_watts", "gpuscope_gpu_utilization_ratio"})
    assert len(checks_that_may_hold(usual)) < len(GPU_CHECKS) / 2
