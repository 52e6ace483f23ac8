"""Appends one target's samples, `up` and staleness markers to the store.

A series that is missing from a scrape gets Prometheus' staleness marker, so that it ends at once and not after
the lookback of five minutes. A failed scrape ends all series. Samples with explicit timestamps get no markers,
as in Prometheus. Everything appended can also go to a `Sink`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.scrape import Sink
from gpuscope.history.store import Appended, Store, Tick, UnknownSeriesError
from gpuscope.model.series import STALE_NAN_BITS, Labels

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]


@dataclass(frozen=True, slots=True)
class Report:
    """Values of `up` and the `scrape_*` series of one scrape."""

    up: bool
    duration_seconds: float
    samples_scraped: int = 0
    samples_kept: int = 0  # after metric relabelling
    series_added: int = 0

    def values(self) -> tuple[float, ...]:
        kept, added = float(self.samples_kept), float(self.series_added)
        return float(self.up), self.duration_seconds, float(self.samples_scraped), kept, added


REPORT_NAMES = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)


def sorted_labels(labels: Mapping[str, str]) -> Labels:
    """Labels in the store's form: sorted, without empty values."""
    return tuple(sorted((name, value) for name, value in labels.items() if value != ""))


def report_labels(name: str, target: Mapping[str, str]) -> Labels:
    """The labels of `up` and the `scrape_*` series. As in Prometheus, setting `x` removes `exported_x`."""
    labels = {"__name__": name}
    for key, value in sorted(target.items()):
        labels[f"exported_{key}"] = ""
        labels[key] = value
    return sorted_labels(labels)


_NO_SERIES: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _KnownSeries:
    """The ids array of the last scrape, and that of a tick with the same series."""

    ids: NDArray[np.int64]
    series: NDArray[np.int64]


class TargetAppender:
    """One per target. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        name: str,
        labels: Mapping[str, str],
        sink: Sink | None = None,
        *,
        has_reports: bool = True,
    ) -> None:
        """`has_reports`: store `up` and the `scrape_*` series too."""
        self._store = store
        self._has_reports = has_reports
        self._labels = dict(labels)
        self._name = name
        self.target = store.target(name)
        store.own_instances.add(self._labels)
        # Arrays: sets of 600 ids for 1,000 targets take 100 MB and are scanned by each garbage collection.
        self._alive = _NO_SERIES
        self._before = _NO_SERIES
        self._known: _KnownSeries | None = None
        self._epoch = store.epoch
        self._report_ids: NDArray[np.int64] | None = None
        self._sink = sink
        self._encoded: dict[int, bytes] = {}

    def series_ids(self, labels: Sequence[Labels], *, reserved: bool = False) -> NDArray[np.int64]:
        """The ids of the series with these labels, valid until `refresh` returns True. 0 for a new series that
        the store refuses; it never refuses `reserved` ones."""
        ids = self._store.resolve(self.target, labels, reserved=reserved)
        if self._sink is not None:
            for series, series_labels in zip(ids.tolist(), labels, strict=True):
                if series:
                    self._encoded[series] = self._sink.encode_labels(series_labels)
        return ids

    def series_refused(self) -> str:
        """The reason why the store refused a new series."""
        return self._store.series_refused()

    def series_id(self, labels: Labels) -> int:
        return int(self.series_ids([labels])[0])

    def refresh(self) -> bool:
        """Returns True if earlier ids are invalid because the store has removed series."""
        if self._epoch == self._store.epoch:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Drops all ids, because the store has removed series or the target."""
        self._epoch = self._store.epoch
        self.target = self._store.target(self._name)
        self._alive = self._before = _NO_SERIES
        self._known = None
        self._encoded.clear()
        self._report_ids = None

    @property
    def has_sink(self) -> bool:
        return self._sink is not None

    def submit(
        self,
        at_ms: int,
        ids: Sequence[int] | NDArray[np.int64],
        values: Sequence[float] | NDArray[np.float64],
        report: Report,
        timed: Sequence[tuple[int, int, float]] = (),
        *,
        timed_become_stale: bool = False,
    ) -> Future[Appended]:
        """Submits one scrape to the store; the future completes when it is on disk. `ids` has no duplicates."""
        present = np.asarray(ids, np.int64)
        known = self._known
        if known is not None and known.ids is present and not timed:
            tick = self._tick(known, at_ms, values, report)
            self._before = self._alive
        else:
            tick = self._new_tick(at_ms, present, values, report, timed, timed_become_stale)
        self._send_to_sink(tick)
        return self._store.submit(tick)

    def try_submit(
        self, at_ms: int, ids: NDArray[np.int64], values: NDArray[np.float64], report: Report
    ) -> Future[Appended] | None:
        """As `submit`, for the ids array of the last scrape. Returns None, and changes nothing, if other series
        were submitted last or if the store's queue is full. Never waits."""
        known = self._known
        if known is None or known.ids is not ids or self._sink is not None:
            return None
        stored = self._store.try_submit(self._tick(known, at_ms, values, report))
        if stored is not None:
            self._before = self._alive
        return stored

    def _tick(
        self,
        known: _KnownSeries,
        at_ms: int,
        values: Sequence[float] | NDArray[np.float64],
        report: Report,
    ) -> Tick:
        """All series are those of the last scrape: the same array lets the store skip its checks."""
        return Tick(self.target, at_ms, known.series, np.concatenate([values, self._report_values(report)]))

    def _new_tick(
        self,
        at_ms: int,
        present: NDArray[np.int64],
        values: Sequence[float] | NDArray[np.float64],
        report: Report,
        timed: Sequence[tuple[int, int, float]],
        timed_become_stale: bool,
    ) -> Tick:
        now = present
        if timed_become_stale and timed:
            now = np.union1d(present, [series for series, _, _ in timed])
        ended = self._alive[~np.isin(self._alive, now)]
        series = np.concatenate([present, ended, self._reports()])
        numbers = np.concatenate(
            [np.asarray(values, np.float64), np.full(len(ended), STALE), self._report_values(report)]
        )
        times = None
        if timed:
            own_ids, own_times, own_values = zip(*timed, strict=True)
            times = np.concatenate([np.full(len(series), at_ms, np.int64), np.array(own_times, np.int64)])
            series = np.concatenate([series, np.array(own_ids, np.int64)])
            numbers = np.concatenate([numbers, np.array(own_values, np.float64)])
        self._before, self._alive = self._alive, now
        is_plain = not timed and not len(ended)
        # After markers the next scrape has other series: those that ended are not in it.
        self._known = _KnownSeries(present, series if is_plain else np.concatenate([present, self._reports()]))
        if timed:
            self._known = None
        return Tick(self.target, at_ms, series, numbers, times)

    def restore_alive(self) -> None:
        """Called when the last scrape was not stored: its staleness markers are due again."""
        self._alive = np.union1d(self._alive, self._before)
        self._known = None

    def fail(self, at_ms: int, duration_seconds: float) -> Future[Appended]:
        """Records a failed scrape: all series end, `up` is 0."""
        return self.submit(at_ms, (), (), Report(up=False, duration_seconds=duration_seconds))

    def close(self, at_ms: int) -> None:
        """Ends all series of a removed target, including `up`."""
        ended = np.concatenate([self._alive, self._reports()])
        tick = Tick(self.target, at_ms, ended, np.full(len(ended), STALE))
        with contextlib.suppress(UnknownSeriesError):  # the store may have removed them already
            self._send_to_sink(tick)
            self._store.append(tick)
        self._alive = _NO_SERIES
        self._known = None
        self._store.own_instances.remove(self._labels)

    def _send_to_sink(self, tick: Tick) -> None:
        if self._sink is None:
            return
        encoded = [self._encoded.get(series, b"") for series in tick.series.tolist()]
        times = [tick.timestamp] * len(encoded) if tick.timestamps is None else tick.timestamps.tolist()
        self._sink.take(zip(encoded, times, tick.values.tolist(), strict=True))

    def _report_values(self, report: Report) -> Sequence[float]:
        return report.values() if self._has_reports else ()

    def _reports(self) -> NDArray[np.int64]:
        if not self._has_reports:
            return _NO_SERIES
        if self._report_ids is None:
            names = [report_labels(name, self._labels) for name in REPORT_NAMES]
            # Exempt from the series limit: few per target, and `up` must never be missing.
            self._report_ids = self.series_ids(names, reserved=True)
        return self._report_ids
