"""The query that shows a finding of the past: its row's expression, limited to the finding's GPUs or owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuscope.go_quote import quote
from gpuscope.health.finding import FindingOwner
from gpuscope.health.finding_details import one_of
from gpuscope.health.lost_time import LossScope, LostTime
from gpuscope.reports.finding_windows import GpuKey

MAX_UUIDS_NAMED: Final = 32
_OF_POD: Final = "gpuscope_process_memory_bytes|gpuscope_allocation_used"
_OWNER_LABEL: Final = {"user": "user", "job": "slurm_job", "container": "container"}


def evidence_of(row: LostTime, owner: FindingOwner, keys: Sequence[GpuKey]) -> str:
    if row.scope is LossScope.NODE:
        only = f"instance=~{quote(one_of(sorted({instance for instance, _ in keys})))}"
        return f'({row.promql}) and on (instance) {{__name__=~"up|gpuscope_agent_info",{only}}}'
    uuids = sorted({uuid for _, uuid in keys})
    query = f"({row.promql})"
    if len(uuids) <= MAX_UUIDS_NAMED:
        infos = f'{{__name__=~"gpuscope_(gpu|mig)_info",uuid=~{quote(one_of(uuids))}}}'
        query += f" and on (instance, uuid) {infos}"
    if owner.kind == "pod":
        pod = f"namespace={quote(owner.namespace)},pod={quote(owner.name)}"
        return f'{query} and on (namespace, pod) {{__name__=~"{_OF_POD}",{pod}}}'
    label = _OWNER_LABEL.get(owner.kind)
    if label is None:
        return query
    holder = "gpuscope_allocation_used" if row.kind == "allocated_unused" else "gpuscope_process_memory_bytes"
    return query + f" and on ({label}) {holder}{{{label}={quote(owner.name)}}}"
