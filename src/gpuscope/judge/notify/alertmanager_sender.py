"""Alerts to real Alertmanagers: an `AlertSink` with a queue for each, and the discovery of where they are.

A queue is bounded, sent in batches, and never retried: as in Prometheus, the rule engine sends an alert again
each minute while it fires, and for 15 minutes after it is resolved. The wiring runs each queue in a thread, so
that an Alertmanager that hangs delays no other, and the discovery in one more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.remote_write.sender import PostClient
from gpuscope.history.scrape.discovery import MIN_UPDATE_SECONDS, Discovery, ProviderRunner, build_discoveries
from gpuscope.history.scrape.relabel import RelabelRule, relabel
from gpuscope.judge.notify.alertmanager_config import AlertingSection, AlertmanagerGroup
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.judge.rules.rule_group import Timings, timing_families
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, single_metric
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope.notify")

MAX_BATCH = 256
JSON_HEADERS = (("content-type", "application/json"),)
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
FILE_CHECK_SECONDS = 5.0


class AlertmanagerQueue:
    """The alerts that wait for one Alertmanager; the oldest are dropped first."""

    def __init__(self, url: str, http: HttpConfig, timeout_seconds: float, capacity: int) -> None:
        self.url = url
        self._client = PostClient(url, http, timeout_seconds)
        self._capacity = capacity
        self._waiting: deque[Alert] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._episode = EpisodeLog(logging.getLogger("gpuscope"), f"Alertmanager {url}: alerts were not sent")
        self.sent = self.dropped = self.errors = 0
        self.latency = Timings()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, alerts: Sequence[Alert]) -> None:
        """Add alerts; does not wait."""
        with self._changed:
            if self._stopping:
                return
            self._waiting.extend(alerts)
            excess = len(self._waiting) - self._capacity
            for _ in range(excess):
                self._waiting.popleft()
            if excess > 0:
                self.dropped += excess
                LIMITS_REACHED.count("alertmanager_queue_capacity")
            self._changed.notify()

    def stop(self) -> None:
        """`run` sends what is left and returns."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self.send(batch)
        self._client.close()

    def _next_batch(self) -> list[Alert] | None:
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    def send(self, batch: Sequence[Alert]) -> None:
        began = time.monotonic()
        try:
            response = self._client.post(encode_alerts(batch), JSON_HEADERS)
            if response.status // 100 != 2:
                raise OSError(f"HTTP {response.status} {response.text}".strip())
        except OSError as error:
            self.errors += len(batch)
            self.dropped += len(batch)
            self._episode.failed(str(error) or type(error).__name__)
            return
        self._episode.succeeded()
        self.latency.observe(time.monotonic() - began)
        self.sent += len(batch)


def encode_alerts(alerts: Sequence[Alert]) -> bytes:
    """The body of `POST /api/v2/alerts`, byte for byte as Prometheus writes it."""
    text = orjson.dumps([_alert_document(alert) for alert in alerts]).decode()
    return text.translate(_HTML).encode()


def _alert_document(alert: Alert) -> dict[str, Any]:
    ends_at = alert.valid_until if alert.ends_at is None else alert.ends_at
    annotations = _mapping(alert.annotations)
    return {
        **({"annotations": annotations} if annotations else {}),
        "endsAt": milliseconds_text(ends_at),
        "startsAt": milliseconds_text(alert.starts_at),
        "generatorURL": alert.generator_url,
        "labels": _mapping(alert.labels),
    }


def _mapping(labels: Labels) -> dict[str, str]:
    """Text that is not UTF-8 cannot be sent in JSON."""
    return {_utf8(name): _utf8(value) for name, value in labels}


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def milliseconds_text(seconds: float) -> str:
    """RFC 3339 with milliseconds, cut off as Go does it; a float has microseconds at best."""
    milliseconds = round(seconds * 1e6) // 1000
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


StartQueue = Callable[[AlertmanagerQueue], None]


@dataclass(slots=True)
class _Destination:
    """The Alertmanagers of one entry of the configuration."""

    discovery: Discovery[AlertmanagerGroup]
    queues: dict[str, AlertmanagerQueue] = field(default_factory=dict)  # by URL
    dropped_urls: list[str] = field(default_factory=list)

    @property
    def group(self) -> AlertmanagerGroup:
        return self.discovery.job


class AlertmanagerSender:
    """Adds external labels, relabels, and puts alerts into each Alertmanager's queue. A reload and a new answer
    of the discovery keep the queue of an Alertmanager whose address and options did not change."""

    def __init__(self, limits: Limits, start: StartQueue) -> None:
        self._capacity = limits.alertmanager_queue_capacity
        self._max_alertmanagers = limits.alertmanagers_max
        self._start = start
        self._lock = threading.Lock()
        self._section = AlertingSection()
        self._external_labels: Mapping[str, str] = {}
        self._destinations: list[_Destination] = []
        self._limit_log = EpisodeLog(
            log, "Alertmanagers", level=logging.ERROR, recovered="alerts are sent to all of them again"
        )

    def use(
        self,
        section: AlertingSection,
        external_labels: Mapping[str, str],
        discoveries: Sequence[Discovery[AlertmanagerGroup]],
    ) -> None:
        """Send to the Alertmanagers that these discoveries, one for each entry of the section, find."""
        with self._lock:
            before = list(self._destinations)
            self._destinations = []
            for discovery in discoveries:
                known = next((old for old in before if old.group == discovery.job), None)
                if known is not None:
                    before.remove(known)
                self._destinations.append(_Destination(discovery, known.queues if known else {}))
            for old in before:
                for queue in old.queues.values():
                    queue.stop()
            self._section, self._external_labels = section, dict(external_labels)
        self.refresh()

    def refresh(self) -> None:
        """Look which Alertmanagers there are now. Those that were there before keep their queue."""
        with self._lock:
            room = self._max_alertmanagers
            is_exceeded = False
            for destination in self._destinations:
                urls, destination.dropped_urls = destination.group.urls_of(destination.discovery.groups())
                is_exceeded |= len(urls) > room
                self._update_queues(destination, urls[:room])
                room -= len(destination.queues)
        self._report_limit(is_exceeded)

    def _update_queues(self, destination: _Destination, urls: Sequence[str]) -> None:
        for url in destination.queues.keys() - set(urls):
            destination.queues.pop(url).stop()
        for url in urls:
            if url not in destination.queues:
                group = destination.group
                queue = AlertmanagerQueue(url, group.http, group.timeout_seconds, self._capacity)
                destination.queues[url] = queue
                self._start(queue)

    def _report_limit(self, is_exceeded: bool) -> None:
        if is_exceeded:
            LIMITS_REACHED.count("alertmanagers_max")
            self._limit_log.failed(
                f"more than {self._max_alertmanagers}: the others get no alerts (alertmanagers_max)"
            )
        else:
            self._limit_log.succeeded()

    def take(self, alerts: Sequence[Alert]) -> None:
        with self._lock:
            if not self._destinations:
                return
            sent = relabel_alerts(alerts, self._section.alert_relabel, self._external_labels)
            for destination in self._destinations:
                rules = destination.group.alert_relabel
                own = relabel_alerts(sent, rules, {}) if rules else sent
                if own:
                    for queue in destination.queues.values():
                        queue.put(own)

    def stop(self) -> None:
        """Every queue sends what it has and ends."""
        with self._lock:
            for destination in self._destinations:
                for queue in destination.queues.values():
                    queue.stop()

    def urls(self) -> tuple[list[str], list[str]]:
        """For `/api/v1/alertmanagers`: active and dropped ones."""
        with self._lock:
            active = [url for destination in self._destinations for url in destination.queues]
            return active, [url for destination in self._destinations for url in destination.dropped_urls]

    def families(self) -> Iterator[MetricFamily]:
        with self._lock:
            queues = [queue for destination in self._destinations for queue in destination.queues.values()]
        labels = [LabelSet((("alertmanager", queue.url),)) for queue in queues]
        rows = (
            ("sent_total", "counter", "Alerts sent.", [queue.sent for queue in queues]),
            (
                "dropped_total",
                "counter",
                "Alerts not sent, by errors or full queues.",
                [q.dropped for q in queues],
            ),
            ("errors_total", "counter", "Alerts in requests that failed.", [queue.errors for queue in queues]),
            ("queue_length", "gauge", "Alerts that wait to be sent.", [len(queue) for queue in queues]),
        )
        for name, kind, help_text, values in rows:
            samples = [Sample(own, value) for own, value in zip(labels, values, strict=True)]
            yield MetricFamily(f"prometheus_notifications_{name}", kind, help_text, samples)
        fixed = (
            ("queue_capacity", "Alerts that a queue holds.", self._capacity),
            ("alertmanagers_discovered", "Alertmanagers that alerts are sent to.", len(queues)),
        )
        for name, help_text, count in fixed:
            yield single_metric(f"prometheus_notifications_{name}", "gauge", help_text, count)
        yield from timing_families(
            "prometheus_notifications_latency_seconds",
            "prometheus_notifications_latency_histogram_seconds",
            "Time to send a batch of alerts.",
            (0.5, 0.9, 0.99),
            [(own, queue.latency) for own, queue in zip(labels, queues, strict=True)],
        )


def relabel_alerts(
    alerts: Sequence[Alert], rules: Sequence[RelabelRule], external_labels: Mapping[str, str]
) -> list[Alert]:
    relabelled: list[Alert] = []
    for alert in alerts:
        labels = relabel({**external_labels, **dict(alert.labels)}, rules)
        if labels is not None:
            relabelled.append(replace(alert, labels=tuple(sorted(labels.items()))))
    return relabelled


class AlertmanagerDiscovery:
    """Follows target providers and file_sd files. `use` takes effect at once with what is known; `run` is only
    needed for entries that are not static. While a provider fails, the Alertmanagers that it found last
    stay."""

    def __init__(
        self,
        sender: AlertmanagerSender,
        workers: Executor,
        limits: Limits,
        min_update_seconds: float = MIN_UPDATE_SECONDS,
    ) -> None:
        self._sender = sender
        self._workers = workers
        self._limits = limits
        self._min_update_seconds = min_update_seconds
        self._discoveries: list[Discovery[AlertmanagerGroup]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False

    def use(self, section: AlertingSection, external_labels: Mapping[str, str]) -> None:
        """Thread-safe. Alertmanagers of providers that were there before stay until the first answer."""
        self._discoveries = build_discoveries(
            section.alertmanagers, self._discoveries, self._workers, self._limits
        )
        self._sender.use(section, external_labels, self._discoveries)
        self._wake()

    @property
    def is_needed(self) -> bool:
        """Whether a thread must run `run`."""
        return any(not discovery.job.is_static for discovery in self._discoveries)

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        """Thread-safe."""
        self._is_stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        providers = ProviderRunner(self._changed.set, self._min_update_seconds)
        try:
            while not self._is_stopping:
                self._changed.clear()
                discoveries = self._discoveries
                await providers.run_only(
                    provider for discovery in discoveries for provider in discovery.providers
                )
                try:
                    self._sender.refresh()  # reads files; nothing else runs in this thread
                except Exception:
                    log.exception("the discovery of Alertmanagers failed; the current ones stay")
                has_files = any(discovery.job.files for discovery in discoveries)
                if not self._is_stopping:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), FILE_CHECK_SECONDS if has_files else None)
        finally:
            await providers.stop()
            self._loop = None
