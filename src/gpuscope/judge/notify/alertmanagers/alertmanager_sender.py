"""`AlertSink` for real Alertmanagers: adds external labels, relabels, and puts alerts into each one's queue.

A reload and a new answer of the discovery keep the queue of an Alertmanager whose address and options did not
change. The wiring gives `start`, which runs a queue in a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.scrape.discovery import Discovery
from gpuscope.history.scrape.relabel import RelabelRule, relabel
from gpuscope.judge.notify.alertmanagers.alertmanager_config import AlertingSection, AlertmanagerGroup
from gpuscope.judge.notify.alertmanagers.alertmanager_queue import AlertmanagerQueue
from gpuscope.judge.rules.alert import Alert
from gpuscope.judge.rules.timings import timing_families
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample

log = logging.getLogger("gpuscope.notify")

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
            active = [url for one in self._destinations for url in one.queues]
            return active, [url for one in self._destinations for url in one.dropped_urls]

    def families(self) -> Iterator[MetricFamily]:
        with self._lock:
            queues = [queue for one in self._destinations for queue in one.queues.values()]
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
            yield MetricFamily(
                f"prometheus_notifications_{name}", "gauge", help_text, [Sample(NO_LABELS, count)]
            )
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
    found: list[Alert] = []
    for alert in alerts:
        labels = relabel({**external_labels, **dict(alert.labels)}, rules)
        if labels is not None:
            found.append(replace(alert, labels=tuple(sorted(labels.items()))))
    return found
