"""The nodes that this process collects itself, and its own metrics, as the API shows scrape targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuscope.prometheus_duration import duration_text
from gpuscope.readings import Snapshot
from gpuscope.rfc3339 import to_rfc3339
from gpuscope.scrape.own_metrics_feed import OwnMetricsFeed
from gpuscope.scrape.snapshot_feed import SnapshotFeed

if TYPE_CHECKING:  # a server that collects nothing itself does not need it
    from gpuscope.collect.collector import Collector


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
            active += [own_target_json(self._own)] if self._own is not None else []
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
    health = "up" if snapshot.devices else "unknown"
    return _target_json(feed, snapshot.taken_at, health, "; ".join(errors))


def own_target_json(feed: OwnMetricsFeed) -> dict[str, Any]:
    return _target_json(feed, feed.stored_at, "up" if feed.stored_at else "unknown", "")


def _target_json(
    feed: SnapshotFeed | OwnMetricsFeed, stored_at: float, health: str, error: str
) -> dict[str, Any]:
    interval = duration_text(round(1000 * feed.interval_seconds))
    return {
        "discoveredLabels": feed.labels,
        "labels": feed.labels,
        "scrapePool": feed.labels["job"],
        "scrapeUrl": "",
        "globalUrl": "",
        "lastError": error,
        "lastScrape": to_rfc3339(stored_at),
        "lastScrapeDuration": 0,
        "health": health,
        "scrapeInterval": interval,
        "scrapeTimeout": interval,
    }
