"""Findings about nodes and scrape targets: no answer, old numbers, a source that is down, missing GPUs.

A node that is gone has only this one finding. Lost GPUs have findings of their own, so `gpus_missing` counts
the GPUs that are missing beyond them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpuscope.health.check import Check, Subject
from gpuscope.health.checks import LIVE_CHECKS
from gpuscope.health.facts import NodeFacts
from gpuscope.health.finding_details import Detail, whole
from gpuscope.health.missing import Gone, Missing
from gpuscope.health.thresholds import HOST_MEMORY_RATIO, SOURCE_SLOW_SECONDS


@dataclass(frozen=True, slots=True)
class NodeDetail:
    kind: str
    instance: str
    name: str
    detail: Detail


_NODE_CHECKS = tuple(
    check for check in LIVE_CHECKS if check.subject is Subject.NODE and check.kind != "node_down"
)


def missing_details(
    missing: Missing, names: Collection[str], names_of_gone: Mapping[str, str]
) -> Iterator[NodeDetail]:
    """`names` are those of the nodes that are there; `names_of_gone` has the others by instance."""
    for instance, gone in missing.nodes.items():
        if names_of_gone[instance] not in names:  # a node that came back under another address is not gone
            yield NodeDetail("node_down", instance, names_of_gone[instance], _gone_detail(gone))
    for target in missing.targets:
        if target.instance not in missing.nodes:
            args = {"error": target.gone.why or "–"}
            detail = Detail(args, since=target.gone.since)
            yield NodeDetail("target_down", target.instance, target.instance, detail)


def _gone_detail(gone: Gone) -> Detail:
    if not gone.answered:
        return Detail({"error": gone.why or "–"}, "node_down.never", "node_down.never", since=gone.since)
    if not gone.why:
        return Detail(why_key="node_down.silent", since=gone.since)
    return Detail({"error": gone.why}, since=gone.since)


def node_details(
    instance: str, name: str, node: NodeFacts, now: float, unread_since: float | None
) -> Iterator[NodeDetail]:
    """Of a node that is there."""
    firing = [check for check in _NODE_CHECKS if check.live is not None and check.live(node, now)]
    kinds = {check.kind for check in firing}
    for check in firing:
        if kinds.isdisjoint(check.inhibited_by):
            for detail in _details(check, node, unread_since):
                yield NodeDetail(check.kind, instance, name, detail)


def _details(check: Check, node: NodeFacts, unread_since: float | None) -> Iterator[Detail]:
    numbers = node.plain
    if check.kind == "source_down":
        sources = node.by_label["gpuscope_source_up"]
        yield from (Detail({"source": name}, since=unread_since) for name, up in sources.items() if up == 0)
    elif check.kind == "source_slow":
        for name, seconds in node.by_label["gpuscope_source_duration_seconds"].items():
            if seconds > SOURCE_SLOW_SECONDS:
                yield Detail({"source": name, "seconds": round(SOURCE_SLOW_SECONDS)})
    elif check.kind == "gpus_missing":
        expected, seen = numbers["gpuscope_gpus_expected"], numbers["gpuscope_gpus_seen"]
        lost = sum(gpu.plain.get("gpuscope_gpu_up") == 0 and not gpu.parent_uuid for gpu in node.gpus)
        if expected - seen > lost:
            yield Detail({"count": whole(expected - seen - lost), "expected": whole(expected)})
    elif check.kind == "host_memory_low":
        yield Detail({"percent": round(100 * HOST_MEMORY_RATIO)})
    elif check.kind == "node_stale":
        yield Detail(since=numbers["gpuscope_agent_snapshot_timestamp_seconds"])
    else:
        yield Detail()
