"""All checks in one table, by kind; and those of gpuscope's own services."""

from __future__ import annotations

from typing import Final

from gpuscope.health.check import Check, Severity, Subject
from gpuscope.health.gpu_checks import GPU_CHECKS
from gpuscope.health.node_checks import NODE_CHECKS
from gpuscope.health.use_checks import USE_CHECKS

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
        one_form_because="the page shows the store's own state; it is not part of the fleet",
        for_seconds=60,
        meaning="History is not stored, or part of it is damaged.",
        next_step="free disk space; run gpuscope store check",
    ),
)

CHECKS: Final[dict[str, Check]] = {
    check.kind: check for check in (*NODE_CHECKS, *GPU_CHECKS, *USE_CHECKS, *SERVICE_CHECKS)
}
LIVE_CHECKS: Final = tuple(check for check in CHECKS.values() if check.live is not None)
