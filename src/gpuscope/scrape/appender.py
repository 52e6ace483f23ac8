"""One target's way into the store: its samples, its `up`, and a staleness marker for what it no longer sends.

A series that was there and is not there any more ends at once, with Prometheus' stale marker, instead of being
looked back at for five minutes. A failed scrape ends all of them. Samples that bring a time of their own are
not marked stale: their sender decides when they end.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from gpuscope.store import Appended, Store, Tick, UnknownSeriesError
from gpuscope.store.series import STALE_NAN_BITS, Labels

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]


@dataclass(frozen=True, slots=True)
class Report:
    """What a scrape says of itself, as `up` and its siblings."""

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
    """As the store wants them: sorted, and without empty values."""
    return tuple(sorted((name, value) for name, value in labels.items() if value != ""))


class TargetAppender:
    """Not for several threads at once; one per target."""

    def __init__(self, store: Store, name: str, labels: Mapping[str, str]) -> None:
        self._store = store
        self._labels = dict(labels)
        self.target = store.target(name)
        self._alive: set[int] = set()
        self._known: dict[Labels, int] = {}
        self._epoch = store.epoch
        self._report_ids: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def series_id(self, labels: Labels) -> int:
        """The id of a series with exactly these labels; forgotten when the store removed series."""
        known = self._known.get(labels)
        if known is None:
            known = self._known[labels] = int(self._store.resolve(self.target, [labels])[0])
        return known

    def refresh(self) -> bool:
        """True if ids given out before are no longer valid: the store has removed series since."""
        if self._epoch == self._store.epoch and len(self._known) < 1_000_000:
            return False
        self._epoch = self._store.epoch
        self._known.clear()
        self._alive.clear()
        self._report_ids = None
        return True

    def submit(
        self,
        at_ms: int,
        ids: Sequence[int],
        values: Sequence[float],
        report: Report,
        timed: Sequence[tuple[int, int, float]] = (),
    ) -> Future[Appended]:
        """Hands one scrape to the store; the future is done when it is on disk."""
        now = set(ids)
        ended = list(self._alive - now)
        report_ids = self._reports()
        series = np.concatenate([np.fromiter(ids, np.int64, len(ids)), np.array(ended, np.int64), report_ids])
        numbers = np.concatenate([np.asarray(values, np.float64), np.full(len(ended), STALE), report.values()])
        times = None
        if timed:
            own_ids, own_times, own_values = zip(*timed, strict=True)
            times = np.concatenate([np.full(len(series), at_ms, np.int64), np.array(own_times, np.int64)])
            series = np.concatenate([series, np.array(own_ids, np.int64)])
            numbers = np.concatenate([numbers, np.array(own_values, np.float64)])
        self._alive = now
        return self._store.submit(Tick(self.target, at_ms, series, numbers, times))

    def fail(self, at_ms: int, duration_seconds: float) -> None:
        """A scrape that did not succeed: everything ends, `up` is 0."""
        self.submit(at_ms, (), (), Report(up=False, duration_seconds=duration_seconds)).result()

    def close(self, at_ms: int) -> None:
        """The target is gone for good: also `up` ends."""
        ended = np.concatenate([np.array(list(self._alive), np.int64), self._reports()])
        tick = Tick(self.target, at_ms, ended, np.full(len(ended), STALE))
        with contextlib.suppress(UnknownSeriesError):  # the store may have removed them already
            self._store.append(tick)
        self._alive.clear()

    def _reports(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self._report_ids is None:
            names = [sorted_labels({**self._labels, "__name__": name}) for name in REPORT_NAMES]
            self._report_ids = np.array([self.series_id(labels) for labels in names], np.int64)
        return self._report_ids
