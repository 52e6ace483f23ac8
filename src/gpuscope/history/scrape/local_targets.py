"""The nodes that this process collects itself as scrape targets of the API, and the metadata of its metrics."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuscope.base.time_text import duration_text, to_rfc3339
from gpuscope.history.scrape.local_feeds import OwnMetricsFeed, SnapshotFeed
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.model.readings import Snapshot

if TYPE_CHECKING:
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


# Whether the scraper scrapes this process itself, and the metadata of own metrics beside that of the targets.
#
# Input: the scraper's targets and the address this process listens on. A target is this process if its port
# and path are the same and its host is this machine's name or a loopback address.

METRICS_PATH = "/metrics"


def scrapes_itself(targets: Iterable[TargetHealth], host_names: Collection[str], port: int) -> bool:
    return any(_is_this_process(target.url, host_names, port) for target in targets)


def _is_this_process(url: str, host_names: Collection[str], port: int) -> bool:
    try:
        parts = urlsplit(url)
        target_port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return False
    host = parts.hostname or ""
    return target_port == port and parts.path == METRICS_PATH and (host in host_names or _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ScrapedAndOwnTargets:
    """The scraper's targets, and the metadata of own metrics while they are stored."""

    def __init__(self, scraper: Scraper, own: OwnMetricsFeed) -> None:
        self._scraper = scraper
        self._own = own

    def targets_json(self, state: str) -> dict[str, Any]:
        return self._scraper.targets_json(state)

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        own = self._own.target.metadata() if self._own.stored_at else {}
        return {**own, **self._scraper.metadata()}

    def target_metadata(self) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
        yield from self._scraper.target_metadata()
        if self._own.stored_at:
            known = self._own.target.metadata()
            yield dict(self._own.labels), {name: entries[0] for name, entries in known.items()}

    def config_text(self) -> str:
        return self._scraper.config_text()
