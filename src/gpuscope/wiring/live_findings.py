"""What is wrong on one machine now, by the live checks of `health`, in the format of `/api/findings`.

One finding per kind and node, with all its GPUs. Beginnings are not known here: a server knows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gpuscope.health.check import Check, Severity, Subject
from gpuscope.health.checks import LIVE_CHECKS
from gpuscope.health.facts import Facts, FleetFacts, GpuFacts

_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}
NOT_SHOWN: Final = frozenset({"memory_full"})
"""Live checks that ask for no action; they are for alert rules that a site wants to switch on."""


def live_findings(fleet: FleetFacts) -> list[dict[str, Any]]:
    found: list[tuple[Check, dict[str, Any]]] = []
    for instance, node in fleet.nodes.items():
        name = node.labels.get("node") or instance
        firing = {id(gpu): _firing(gpu, fleet.now) for gpu in node.gpus}
        members: dict[str, tuple[Check, list[GpuFacts]]] = {}
        for gpu in node.gpus:
            for check in firing[id(gpu)]:
                members.setdefault(check.kind, (check, []))[1].append(gpu)
        found += [(check, _finding(check, name, gpus)) for check, gpus in members.values()]
        found += [(check, _finding(check, name, ())) for check in _holding(Subject.NODE, node, fleet.now)]
    return [finding for _, finding in sorted(found, key=lambda pair: _RANKS[pair[0].severity])]


def _holding(subject: Subject, facts: Facts, now: float) -> list[Check]:
    return [
        check
        for check in LIVE_CHECKS
        if check.subject is subject
        and check.kind not in NOT_SHOWN
        and check.live is not None
        and check.live(facts, now)
    ]


def _firing(gpu: GpuFacts, now: float) -> list[Check]:
    """The checks that hold for a GPU, without those that another one of them explains."""
    found = _holding(Subject.GPU, gpu, now)
    kinds = {check.kind for check in found}
    if "gpu_lost" in kinds:  # nothing else is known of it
        return [check for check in found if check.kind == "gpu_lost"]
    return [check for check in found if kinds.isdisjoint(check.inhibited_by)]


def _finding(check: Check, node: str, gpus: Iterable[GpuFacts]) -> dict[str, Any]:
    labels = [gpu.labels for gpu in gpus]
    return {
        "kind": check.kind,
        "severity": check.severity.value,
        "node": node,
        "gpus": [one.get("gpu", "") for one in labels],
        "uuids": [one.get("uuid", "") for one in labels],
        "why": check.meaning,
        "next": check.next_step,
    }
