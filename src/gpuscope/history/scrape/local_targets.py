"""The nodes that this process collects itself as scrape targets of the API, and the metadata of its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuscope.base.prometheus_duration import duration_text
from gpuscope.base.rfc3339 import to_rfc3339
from gpuscope.history.scrape.own_metrics_feed import OwnMetricsFeed
from gpuscope.history.scrape.snapshot_feed import SnapshotFeed
from gpuscope.model.readings import Snapshot

if TYPE_CHECKING:  # a server that collects nothing itself does not need it
    from gpuscope.agent.collect.collector import Collector


class LocalTargets:
    def __init__(
        self, nodes: Sequence[tuple[Collector, SnapshotFeed]], own: OwnMetricsFeed | None = None
    ) -> None:
        self._nodes = nodes
        self._own = own

    def targets_json(self, state: str) -> dict[str, Any]:
        active = []
        if state != "dropped":
            active = [_node_json(collector.snapshot, feed) for collector, feed in self._nodes]
        return {"activeTargets": active, "droppedTargets": [], "droppedTargetCounts": {}}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        merged: dict[str, list[dict[str, str]]] = {}
        for feed in self._feeds():
            merged |= feed.target.metadata()
        return merged

    def target_metadata(self) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
        for feed in self._feeds():
            yield dict(feed.labels), {name: entries[0] for name, entries in feed.target.metadata().items()}

    def _feeds(self) -> list[SnapshotFeed | OwnMetricsFeed]:
        return [*(feed for _, feed in self._nodes), *([self._own] if self._own is not None else ())]

    def config_text(self) -> str:
        return ""


def _node_json(snapshot: Snapshot, feed: SnapshotFeed) -> dict[str, Any]:
    errors = [f"{status.name}: {status.why}" for status in snapshot.sources if not status.up]
    interval = duration_text(round(1000 * feed.interval_seconds))
    return {
        "discoveredLabels": feed.labels,
        "labels": feed.labels,
        "scrapePool": feed.labels["job"],
        "scrapeUrl": "",
        "globalUrl": "",
        "lastError": "; ".join(errors),
        "lastScrape": to_rfc3339(snapshot.taken_at),
        "lastScrapeDuration": 0,
        "health": "up" if snapshot.devices else "unknown",
        "scrapeInterval": interval,
        "scrapeTimeout": interval,
    }
