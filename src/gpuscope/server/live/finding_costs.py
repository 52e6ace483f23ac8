"""What the findings of now have cost so far: GPUs × hours since they began, most expensive first.

`wasted_gpus` is in each finding, so that a client can keep the cost current. Only kinds in which the whole GPU
does nothing for its holder have a cost here. A GPU that works slowly, a MIG instance and a finding without a
beginning have none: `/api/findings?since=` measures those from the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpuscope.health.check import Share, Subject
from gpuscope.health.checks import CHECKS
from gpuscope.server.api_types.findings_json import FindingJson

WASTED_KINDS: Final = frozenset(
    check.kind
    for check in CHECKS.values()
    if check.share is Share.WHOLE and check.subject in (Subject.GPU, Subject.OWNER)
)


def with_costs(findings: Iterable[FindingJson], now: float) -> list[FindingJson]:
    priced: list[FindingJson] = [{**one, "cost_gpu_hours": _gpu_hours(one, now)} for one in findings]
    return sorted(priced, key=lambda one: -(one["cost_gpu_hours"] or 0.0))


def wasted_gpus(kind: str, uuids: Sequence[str]) -> int | None:
    """How many whole GPUs do nothing for their holder while the finding lasts; None if it is not whole GPUs."""
    is_whole = bool(uuids) and all(uuid.startswith("GPU-") for uuid in uuids)
    return len(uuids) if kind in WASTED_KINDS and is_whole else None


def _gpu_hours(finding: FindingJson, now: float) -> float | None:
    gpus, since = wasted_gpus(finding["kind"], finding["uuids"]), finding["since"]
    return None if gpus is None or since is None else round(gpus * max(0.0, now - since) / 3600, 3)
