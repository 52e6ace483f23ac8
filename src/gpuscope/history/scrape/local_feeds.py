"""Ingests this process's own metric families into the store, as a scrape would, and lists them as targets."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from gpuscope.agent.families import Builder, load_family
from gpuscope.base.clock import Clock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.settings import Settings
from gpuscope.base.time_text import duration_text, to_rfc3339
from gpuscope.history.scrape import Sink
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.history.scrape.target_appender import Report, TargetAppender, sorted_labels
from gpuscope.history.store import Appended, Store, StoreError
from gpuscope.history.store.tick import local_target_name
from gpuscope.model.exposition.sample import LabelSet, MetricFamily
from gpuscope.model.readings import Snapshot

if TYPE_CHECKING:
    from gpuscope.agent.collect.collector import Collector

log = logging.getLogger("gpuscope")


@dataclass(frozen=True, slots=True)
class _KnownFamily:
    """A family of the last snapshot: the label sets of its samples, and their series."""

    name: str
    labels: list[LabelSet]
    ids: list[int]


class LocalIngester:
    def __init__(
        self, store: Store, labels: Mapping[str, str], sink: Sink | None = None, *, has_reports: bool = True
    ) -> None:
        self._labels = dict(labels)
        self._appender = TargetAppender(store, local_target_name(labels), labels, sink, has_reports=has_reports)
        self._ids: dict[str, dict[LabelSet, int]] = {}
        self._last: list[_KnownFamily] = []
        self._last_ids = np.empty(0, np.int64)
        self._metadata: dict[str, MetricFamily] = {}

    def submit(self, families: Iterable[MetricFamily], at_ms: int) -> Future[Appended]:
        started = time.perf_counter()
        if self._appender.refresh():
            self._ids.clear()
            self._last.clear()
        before = {known.name: known for known in self._last}
        now: list[_KnownFamily] = []
        values: list[float] = []
        added = 0
        for family in families:
            self._metadata[family.name] = family
            # Builders share label sets between snapshots: lists of the same objects are compared quickly.
            labels = [sample[0] for sample in family.samples]
            known = before.get(family.name)
            if known is None or known.labels != labels:
                ids, new = self._find_series(family.name, labels)
                added += new
                known = _KnownFamily(family.name, labels, ids)
            now.append(known)
            values += [sample[1] for sample in family.samples]
        if len(now) != len(self._last) or any(map(is_not, now, self._last)):
            self._last_ids = np.array([series for known in now for series in known.ids], np.int64)
        self._last = now
        ids_now, values_now = self._last_ids, np.array(values, np.float64)
        if not ids_now.all():  # refused by the store's series limit; the next snapshot retries
            self._last = []
            ids_now, values_now = ids_now[ids_now != 0], values_now[ids_now != 0]
        duration = time.perf_counter() - started
        report = Report(True, duration, len(ids_now), len(ids_now), added)
        return self._appender.submit(at_ms, ids_now, values_now, report)

    def _find_series(self, name: str, labels: Sequence[LabelSet]) -> tuple[list[int], int]:
        """The series of a family's samples, 0 for those that the store refuses, and how many are new."""
        known = self._ids.setdefault(name, {})
        new = 0
        ids = []
        for label_set in labels:
            series = known.get(label_set)
            if series is None:
                series = self._resolve(name, label_set)
                if series:
                    known[label_set] = series
                    new += 1
            ids.append(series)
        if len(known) > 4 * len(labels) + 1000:  # bounds memory when processes change often
            known.clear()
        return ids, new

    def _resolve(self, name: str, labels: LabelSet) -> int:
        own = {f"exported_{key}" if key in self._labels else key: value for key, value in labels.pairs}
        merged = sorted_labels({**own, **self._labels, "__name__": name})
        return self._appender.series_id(merged)

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        return {
            name: [{"type": "gauge" if f.type == "info" else f.type, "help": f.help, "unit": ""}]
            for name, f in dict(self._metadata).items()  # a copy: another thread may be storing
        }

    def close(self, at_ms: int) -> None:
        self._appender.close(at_ms)


# Stores this process' own metrics, as a scrape of its `/metrics` would: so rules about them work.
#
# Input: the metric families of `/metrics`. Output: while `is_wanted`, their samples and staleness markers in
# the store. They have no `up`, because this is no target of the configuration: `count(up)` must be what a
# Prometheus with the same file has. A store that fails costs these samples only; the log has when that begins
# and ends.


OWN_JOB = "gpuscope-server"
MIN_INTERVAL_SECONDS = 15.0
"""Nothing here changes faster than rules are evaluated."""


class OwnMetricsFeed:
    def __init__(
        self,
        store: Store,
        instance: str,
        interval_seconds: float,
        families: Callable[[], Iterable[MetricFamily]],
        clock: Clock,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.interval_seconds = max(interval_seconds, MIN_INTERVAL_SECONDS)
        self.labels: Mapping[str, str] = {"job": OWN_JOB, "instance": instance}
        self.target = LocalIngester(store, self.labels, has_reports=False)
        self._store = store
        self.stored_at = 0.0
        """Of the last samples; 0 before the first ones, and while they are not wanted."""
        self._is_wanted = is_wanted
        self._families = families
        self._clock = clock
        self._episode = EpisodeLog(log, "storing own metrics")

    def store_now(self) -> None:
        now = self._clock.now()
        if not self._is_wanted():
            self._end(int(now * 1000))
            return
        try:
            self.target.submit(self._families(), int(now * 1000)).result()
        except StoreError as error:
            self._episode.failed(str(error))
        else:
            self.stored_at = now
            self._episode.succeeded()

    def _end(self, at_ms: int) -> None:
        """Marks the series as stale: from now on another scrape stores them, or nobody needs them."""
        if self.stored_at:
            self.stored_at = 0.0
            self.target.close(at_ms)
            self.target = LocalIngester(self._store, self.labels, has_reports=False)


# Stores the snapshots of one node of this process, as a scrape of that node would.
#
# Every `store_interval` seconds one snapshot goes to the store as metric families. A store that fails costs
# history, not the live view: the failure is logged when it begins and when it ends.

STORED_FAMILIES = ("native", "host")
TOLERANCE_SECONDS = 0.5  # snapshots are taken at an interval of their own, which need not divide ours


class SnapshotFeed:
    def __init__(self, settings: Settings, store: Store, node: str) -> None:
        self.interval_seconds = settings.store_interval
        self.labels = {"job": "gpuscope", "instance": node}
        self.target = LocalIngester(store, self.labels)
        self._builders: list[Builder] = [load_family(name).build(settings) for name in STORED_FAMILIES]
        self._next_at = 0.0
        self._episode = EpisodeLog(log, "storing history", level=logging.ERROR)
        self._storing: Future[Appended] | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Stores the snapshot if one is due."""
        if snapshot.taken_at < self._next_at - TOLERANCE_SECONDS:
            return
        self._next_at = snapshot.taken_at + self.interval_seconds
        # Wait for the previous commit, not for this one: a slow disk must not delay the next reading.
        storing, self._storing = self._storing, None
        try:
            if storing is not None:
                storing.result()
                self._episode.succeeded()
            self._storing = self.submit(snapshot)
        except StoreError as error:
            self._episode.failed(str(error))

    def submit(self, snapshot: Snapshot) -> Future[Appended]:
        families = [family for builder in self._builders for family in builder.to_families(snapshot)]
        return self.target.submit(families, int(snapshot.taken_at * 1000))


# The nodes that this process collects itself as scrape targets of the API, and the metadata of its metrics.


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
