"""What the findings of now have cost until now, most expensive first.

The ledger of the history has counted the cost until `cost_at`; since then it has grown by `wasted_gpus`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.serve.api_types.findings_json import FindingJson


def with_costs(findings: Iterable[FindingJson], now: float) -> list[FindingJson]:
    return sorted(
        (_until(finding, now) for finding in findings), key=lambda finding: -(finding["cost_gpu_hours"] or 0.0)
    )


def _until(finding: FindingJson, now: float) -> FindingJson:
    cost, gpus, at = finding["cost_gpu_hours"], finding["wasted_gpus"], finding["cost_at"]
    if cost is None or gpus is None or at is None:
        return finding
    return {
        **finding,
        "cost_gpu_hours": round(cost + gpus * max(0.0, now - at) / 3600, 3),
        "cost_at": max(at, now),
    }
