"""Ingests this process's own metric families into the store, as a scrape would, without text in between."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import is_not

import numpy as np

from gpuscope.history.scrape.sink import Sink
from gpuscope.history.scrape.target_appender import Report, TargetAppender, sorted_labels
from gpuscope.history.store import Appended, Store
from gpuscope.history.store.target_names import local_target_name
from gpuscope.model.exposition.sample import LabelSet, MetricFamily


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
        for one in labels:
            series = known.get(one)
            if series is None:
                series = self._resolve(name, one)
                if series:
                    known[one] = series
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
