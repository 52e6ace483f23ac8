"""All checks in one table, by kind; and those of gpuscope's own services."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpuscope.judge.checks.check import Check, Severity, Subject
from gpuscope.judge.checks.gpu_checks import GPU_CHECKS
from gpuscope.judge.checks.link_checks import LINK_CHECKS
from gpuscope.judge.checks.node_checks import NODE_CHECKS
from gpuscope.judge.checks.slurm_checks import SLURM_CHECKS
from gpuscope.judge.checks.use_checks import USE_CHECKS
from gpuscope.judge.checks.wait_checks import WAIT_CHECKS

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
        for_seconds=900,
        meaning="Alerts do not reach their receivers.",
        next_step="check the receiver's address and credentials; add a second channel",
    ),
    Check(
        kind="gpu_metrics_missing",
        alert="GpuMetricsMissing",
        subject=Subject.SERVICE,
        severity=Severity.WARNING,
        # One metric of each family: a selector over whole families would read every series.
        promql=(
            "absent_over_time(gpuscope_agent_info[15m]) and absent_over_time(DCGM_FI_DEV_GPU_TEMP[15m]) "
            "and absent_over_time(nvidia_smi_index[15m]) "
            # A server that has just started has not waited for them yet; one that is down waits for nothing.
            "and on () (count(up offset 15m) or count(gpuscope_store_full offset 15m)) "
            "and on () (count(up) or count(gpuscope_store_full))"
        ),
        lead_seconds=900,
        inhibited_by=("node_down",),
        meaning="No GPU metrics arrive: dashboards are empty, and no other alert can fire.",
        next_step="run gpuscope doctor --server URL; in Kubernetes check the ServiceMonitor's release label",
    ),
    Check(
        kind="owner_labels_renamed",
        alert="OwnerLabelsRenamed",
        subject=Subject.SERVICE,
        severity=Severity.WARNING,
        promql=(
            'count by (job, instance) (gpuscope_allocation_used{exported_namespace!=""} '
            'or gpuscope_process_memory_bytes{exported_namespace!=""}) > 0'
        ),
        for_seconds=600,
        meaning="The pods of GPUs are stored as exported_pod: panels by pod show the exporter's own pod.",
        next_step="set honor_labels: true in the scrape job, honorLabels: true in the ServiceMonitor",
    ),
)

CHECKS: Final[dict[str, Check]] = {
    check.kind: check
    for check in (
        *NODE_CHECKS,
        *GPU_CHECKS,
        *LINK_CHECKS,
        *WAIT_CHECKS,
        *USE_CHECKS,
        *SLURM_CHECKS,
        *SERVICE_CHECKS,
    )
}


CHECKED_METRICS: Final = frozenset(
    name
    for check in CHECKS.values()
    for name in re.findall(r"\b(?:gpuscope|node)_\w+", f"{check.promql} {check.others}")
)


def explaining_first(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Each check after those that explain it."""
    left = {check.kind: check for check in checks}
    ordered: list[Check] = []
    while left:
        free = [check for check in left.values() if left.keys().isdisjoint(check.explained_by)]
        for check in free or list(left.values()):
            ordered.append(left.pop(check.kind))
    return tuple(ordered)
