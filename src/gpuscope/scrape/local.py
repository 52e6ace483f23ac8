"""Ingests this process's own metric families into the store, as a scrape would, without text in between."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from gpuscope.metrics.sample import LabelSet, MetricFamily
from gpuscope.scrape.sink import Sink
from gpuscope.scrape.target_appender import Report, TargetAppender, sorted_labels
from gpuscope.store import Appended, Store
from gpuscope.store.target_names import local_target_name


class LocalIngester:
    def __init__(
        self, store: Store, labels: Mapping[str, str], sink: Sink | None = None, *, has_reports: bool = True
    ) -> None:
        self._labels = dict(labels)
        self._appender = TargetAppender(store, local_target_name(labels), labels, sink, has_reports=has_reports)
        self._ids: dict[str, dict[LabelSet, int]] = {}
        self._metadata: dict[str, MetricFamily] = {}

    def submit(self, families: Iterable[MetricFamily], at_ms: int) -> Future[Appended]:
        started = time.perf_counter()
        if self._appender.refresh():
            self._ids.clear()
        ids: list[int] = []
        values: list[float] = []
        added = 0
        for family in families:
            self._metadata[family.name] = family
            known = self._ids.setdefault(family.name, {})
            for labels, value in family.samples:
                series = known.get(labels)
                if series is None:
                    series = self._resolve(family.name, labels)
                    if not series:  # refused by the store's series limit; the next snapshot retries
                        continue
                    known[labels] = series
                    added += 1
                ids.append(series)
                values.append(value)
            if len(known) > 4 * len(family.samples) + 1000:  # bounds memory when processes change often
                known.clear()
        duration = time.perf_counter() - started
        report = Report(True, duration, len(ids), len(ids), added)
        return self._appender.submit(at_ms, ids, values, report)

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
