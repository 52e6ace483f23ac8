"""All checks in one table, by kind; and those of gpuscope's own services."""

from __future__ import annotations

from typing import Final

from gpuscope.health.check import Check, Severity, Subject
from gpuscope.health.gpu_checks import GPU_CHECKS
from gpuscope.health.node_checks import NODE_CHECKS
from gpuscope.health.slurm_checks import SLURM_CHECKS
from gpuscope.health.use_checks import USE_CHECKS

_OWN_STATE = "the page shows the server's own state; it is not part of the fleet"

SERVICE_CHECKS: Final = (
    Check(
        kind="store_trouble",
        alert="StoreTrouble",
        subject=Subject.SERVICE,
        severity=Severity.CRITICAL,
        promql=(
            "gpuscope_store_full == 1 or gpuscope_store_damaged_chunks > 0 "
            "or increase(gpuscope_store_failed_commits_total[10m]) > 0"
        ),
        one_form_because=_OWN_STATE,
        for_seconds=60,
        meaning="History is not stored, or part of it is damaged.",
        next_step="free disk space; run gpuscope store check",
    ),
    Check(
        kind="rule_trouble",
        alert="RuleTrouble",
        subject=Subject.SERVICE,
        severity=Severity.WARNING,
        promql=(
            "increase(prometheus_rule_evaluation_failures_total[10m]) > 0 "
            "or increase(prometheus_rule_group_iterations_missed_total[10m]) > 0"
        ),
        one_form_because=_OWN_STATE,
        for_seconds=600,
        inhibited_by=("store_trouble",),
        meaning="Rules fail or are evaluated late: alerts may be missing.",
        next_step="look at lastError in /api/v1/rules; make slow rules cheaper",
    ),
    Check(
        kind="notify_failing",
        alert="NotifyFailing",
        subject=Subject.SERVICE,
        severity=Severity.WARNING,
        promql=(
            "increase(prometheus_notifications_errors_total[15m]) > 0 "
            "or increase(prometheus_notifications_dropped_total[15m]) > 0 "
            "or increase(alertmanager_notifications_failed_total[15m]) > 0"
        ),
        one_form_because=_OWN_STATE,
        for_seconds=900,
        meaning="Alerts do not reach their receivers.",
        next_step="check the receiver's address and credentials; add a second channel",
    ),
)

CHECKS: Final[dict[str, Check]] = {
    check.kind: check for check in (*NODE_CHECKS, *GPU_CHECKS, *USE_CHECKS, *SLURM_CHECKS, *SERVICE_CHECKS)
}
LIVE_CHECKS: Final = tuple(check for check in CHECKS.values() if check.live is not None)
