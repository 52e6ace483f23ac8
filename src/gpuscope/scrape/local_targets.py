"""The nodes that this process collects itself, as the API's `targets` and `metadata` endpoints show targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuscope.collect.collector import Collector
from gpuscope.readings import Snapshot
from gpuscope.rfc3339 import to_rfc3339
from gpuscope.scrape.snapshot_feed import SnapshotFeed
from gpuscope.scrape.target import duration_text


class LocalTargets:
    def __init__(self, nodes: Sequence[tuple[Collector, SnapshotFeed]]) -> None:
        self._nodes = nodes

    def targets_json(self, state: str) -> dict[str, Any]:
        nodes = self._nodes if state != "dropped" else ()
        active = [_target_json(collector.snapshot, feed) for collector, feed in nodes]
        return {"activeTargets": active, "droppedTargets": [], "droppedTargetCounts": {}}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        merged: dict[str, list[dict[str, str]]] = {}
        for _, feed in self._nodes:
            merged |= feed.target.metadata()
        return merged

    def target_metadata(self) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
        for _, feed in self._nodes:
            yield feed.labels, {name: entries[0] for name, entries in feed.target.metadata().items()}

    def config_text(self) -> str:
        return ""


def _target_json(snapshot: Snapshot, feed: SnapshotFeed) -> dict[str, Any]:
    errors = [f"{status.name}: {status.why}" for status in snapshot.sources if not status.up]
    interval = duration_text(feed.interval_seconds)
    return {
        "discoveredLabels": feed.labels,
        "labels": feed.labels,
        "scrapePool": "gpuscope",
        "scrapeUrl": "",
        "globalUrl": "",
        "lastError": "; ".join(errors),
        "lastScrape": to_rfc3339(snapshot.taken_at),
        "lastScrapeDuration": 0,
        "health": "up" if snapshot.devices else "unknown",
        "scrapeInterval": interval,
        "scrapeTimeout": interval,
    }
