"""`AlertSink` for real Alertmanagers: adds external labels, relabels, and puts alerts into each one's queue.

A reload keeps the queue of an Alertmanager whose address and options did not change. The wiring gives `start`,
which runs a queue in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuscope.metrics.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.notify.alertmanagers.alertmanager_config import AlertingSection, AlertmanagerGroup
from gpuscope.notify.alertmanagers.alertmanager_queue import AlertmanagerQueue
from gpuscope.rules.alert import Alert
from gpuscope.rules.timings import timing_families
from gpuscope.scrape.relabel import RelabelRule, relabel

StartQueue = Callable[[AlertmanagerQueue], None]
_Queues = dict[str, AlertmanagerQueue]


class AlertmanagerSender:
    def __init__(self, capacity: int, start: StartQueue) -> None:
        self._capacity = capacity
        self._start = start
        self._lock = threading.Lock()
        self._section = AlertingSection()
        self._external_labels: Mapping[str, str] = {}
        self._sets: list[tuple[AlertmanagerGroup, _Queues]] = []

    def use(self, section: AlertingSection, external_labels: Mapping[str, str]) -> None:
        """Send to these Alertmanagers from now on."""
        with self._lock:
            before = dict.fromkeys(range(len(self._sets)))
            sets: list[tuple[AlertmanagerGroup, _Queues]] = []
            for group in section.alertmanagers:
                known = next((at for at in before if self._sets[at][0] == group), None)
                if known is not None:
                    del before[known]
                    sets.append(self._sets[known])
                else:
                    sets.append((group, self._queues(group)))
            for at in before:
                for queue in self._sets[at][1].values():
                    queue.stop()
            self._sets, self._section, self._external_labels = sets, section, dict(external_labels)

    def _queues(self, group: AlertmanagerGroup) -> _Queues:
        found: _Queues = {}
        for url in group.urls:
            found[url] = AlertmanagerQueue(url, group.http, group.timeout_seconds, self._capacity)
            self._start(found[url])
        return found

    def take(self, alerts: Sequence[Alert]) -> None:
        with self._lock:
            if not self._sets:
                return
            sent = relabel_alerts(alerts, self._section.alert_relabel, self._external_labels)
            for group, queues in self._sets:
                own = relabel_alerts(sent, group.alert_relabel, {}) if group.alert_relabel else sent
                if own:
                    for queue in queues.values():
                        queue.put(own)

    def stop(self) -> None:
        """Every queue sends what it has and ends."""
        with self._lock:
            for _, queues in self._sets:
                for queue in queues.values():
                    queue.stop()

    def urls(self) -> tuple[list[str], list[str]]:
        """For `/api/v1/alertmanagers`: active and dropped ones."""
        groups = self._section.alertmanagers
        active = [url for group in groups for url in group.urls]
        return active, [url for group in groups for url in group.dropped_urls]

    def families(self) -> Iterator[MetricFamily]:
        with self._lock:
            queues = [queue for _, found in self._sets for queue in found.values()]
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
