"""Ingests a scraped body into the store: parse, label, check, append.

A series gets its store id only after the whole scrape has been accepted: a refused scrape creates no series.
The cache of raw series text therefore holds slots, and an array maps slots to ids. If a series occurs twice in
one scrape, the first sample counts, as in Prometheus, and `lastError` reports it. Most scrapes differ from the
last one only in values: `ingest_values` takes those, on the event loop; `ingest` takes all, in a worker thread.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.fetch import Fetched, ScrapeError
from gpuscope.history.scrape.job_options import JobLimits
from gpuscope.history.scrape.relabel import relabel
from gpuscope.history.scrape.target import ScrapeTarget
from gpuscope.history.scrape.target_appender import Report, TargetAppender, sorted_labels
from gpuscope.history.store import Appended
from gpuscope.model.exposition.parser import (
    DROPPED,
    Exposition,
    LastScrape,
    LimitError,
    Metadata,
    Pairs,
    ParseError,
    SeriesCache,
)
from gpuscope.model.exposition.series_text import OUT_OF_RANGE_MS
from gpuscope.model.series import Labels

log = logging.getLogger(__name__)

OWNER_LABELS = frozenset({"pod", "namespace", "container"})
"""Labels that say whose a series is; Kubernetes' discovery gives a target labels of the same names."""
RAW_LINES_PER_SAMPLE = 4
"""Lines per allowed sample: room for comments and for samples that metric relabelling drops."""
MAX_EVENT_LOOP_BYTES = 256 << 10
"""A larger body is not compared on the event loop: this takes about a millisecond."""
MAX_MISSES = 3
"""So many scrapes in a row whose lines changed; the next `SCRAPES_AFTER_MISSES` are not compared."""
SCRAPES_AFTER_MISSES = 16


@dataclass(frozen=True, slots=True)
class IngestResult:
    stored: Future[Appended]
    note: str = ""  # a problem that did not fail the scrape


@dataclass(frozen=True, slots=True)
class _Accepted:
    """The last scrape that was accepted without a note, and the series of its values."""

    scrape: LastScrape
    slots: NDArray[np.int32]
    ids: NDArray[np.int64]
    openmetrics: bool
    samples: int
    """Scraped, including dropped series."""


MAX_REMEMBERED_BYTES_PER_SERIES = 1024
"""Of a response that stays in memory until the next one. `max_series` limits series, and thereby responses:
without it, 20 targets with 30 MiB of comments each keep 600 MiB."""


class TargetIngester:
    """Ingests one target's scrapes. Not thread-safe."""

    def __init__(self, target: ScrapeTarget, appender: TargetAppender) -> None:
        self.target = target
        self.appender = appender
        self.metadata: dict[str, Metadata] = {}
        self._limits = target.job.limits
        self._target_labels = dict(target.labels)
        self._logged_clashes: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        keep_empty = self.target.job.honor_labels
        self._cache = SeriesCache(self._slot, keep_empty=keep_empty, limits=self._limits.text)
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._pending: list[Labels] = []
        self._refused: dict[int, Labels] = {}
        """Slots of series that the store refused; each scrape requests them again."""
        self._last: _Accepted | None = None
        """While this is known, the cache is empty: the same texts are in the scrape."""
        self._misses = 0

    def fail(self, at_ms: int, duration_seconds: float) -> Future[Appended]:
        if self.appender.refresh():
            self._reset()
        return self.appender.fail(at_ms, duration_seconds)

    def forget(self) -> None:
        """Drops all ids, because the store has removed series."""
        self.appender.forget()
        self._reset()

    def ingest_values(self, fetched: Fetched, at_ms: int, started: float) -> IngestResult | None:
        """Ingests a scrape that differs from the last one only in values; returns None if it does not, if it is
        large, or if the store's queue is full. Never waits: for the event loop."""
        if len(fetched.body) > MAX_EVENT_LOOP_BYTES or self.appender.has_sink:
            return None
        return self._ingest_values(fetched, at_ms, started, wait=False)

    def _ingest_values(
        self, fetched: Fetched, at_ms: int, started: float, *, wait: bool
    ) -> IngestResult | None:
        if self.appender.refresh():
            self._reset()
        last = self._last
        if last is None or fetched.openmetrics is not last.openmetrics:
            return None
        values = last.scrape.read_values(fetched.body)
        if values is None:
            return None
        report = Report(True, time.monotonic() - started, last.samples, len(last.ids))
        if wait:
            stored = self.appender.submit(at_ms, last.ids, values, report)
        else:
            queued = self.appender.try_submit(at_ms, last.ids, values, report)
            if queued is None:
                return None
            stored = queued
        last.scrape.replace(fetched.body, values)
        self._misses = 0
        return IngestResult(stored)

    def ingest(self, fetched: Fetched, at_ms: int, started: float) -> IngestResult:
        """Raises ScrapeError if the scrape is refused. `started` is monotonic time. For a worker thread: may
        wait for the store."""
        known = self._ingest_values(fetched, at_ms, started, wait=True)
        if known is not None:
            return known
        self._forget_last()
        try:
            exposition = self._parse(fetched)
        except ScrapeError:
            self._reset()
            raise
        added = self._resolve_pending()
        slots = np.fromiter(exposition.ids, np.int64, len(exposition.ids))
        ids, values = self._ids[slots], np.asarray(exposition.values, np.float64)
        timed = [
            (int(self._ids[slot]), at, value) for slot, at, value in exposition.timed if at != OUT_OF_RANGE_MS
        ]
        kept = len(exposition.ids) + len(timed)
        if self._refused:
            ids, values, timed = ids[ids > 0], values[ids > 0], [sample for sample in timed if sample[0]]
        ids, values, duplicates = _first_of_each(ids, values)
        report = Report(True, time.monotonic() - started, exposition.samples, kept, added)
        track = self.target.job.track_timestamps_staleness
        stored = self.appender.submit(at_ms, ids, values, report, timed, timed_become_stale=track)
        self.metadata = exposition.metadata
        if exposition.metadata_cut:
            LIMITS_REACHED.count("scrape_max_metadata_bytes")
        self._cache.forget_all_but(8 * kept + 10_000, 4 * len(fetched.body) + (1 << 20))
        note = f"{duplicates} samples dropped: duplicate series in the scrape" if duplicates else ""
        if self._refused:
            note = f"{len(self._refused)} series refused: {self.appender.series_refused()}"
        if len(self._ids) > 4 * kept + 1000:  # bounds memory when series change often
            self._reset()
        elif not note and not timed and len(fetched.body) <= MAX_REMEMBERED_BYTES_PER_SERIES * (kept + 100):
            self._remember(fetched, exposition, slots, ids)
        return IngestResult(stored, note)

    def _remember(
        self, fetched: Fetched, parsed: Exposition, slots: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> None:
        """Keeps this scrape to compare the next one with; not for a target whose lines change each time."""
        self._misses += 1
        if self._misses > MAX_MISSES:
            if self._misses <= MAX_MISSES + SCRAPES_AFTER_MISSES:
                return
            self._misses = MAX_MISSES
        scrape = LastScrape.of(fetched.body, parsed, self._cache, self._limits.text.line_bytes)
        if scrape is None:
            return
        self._last = _Accepted(scrape, slots.astype(np.int32), ids, fetched.openmetrics, parsed.samples)
        self._cache.clear()

    def _forget_last(self) -> None:
        """Before a text is parsed: fills the cache with the series of the last one."""
        last, self._last = self._last, None
        if last is not None:
            slots: list[int | None] = [*last.slots.tolist(), None]  # None is at `DROPPED`
            places = ((text, -1 if place == DROPPED else place) for text, place in last.scrape.series_texts())
            self._cache.learn((text, slots[place]) for text, place in places)

    def cached_series(self) -> int:
        """How many series are remembered; bounded, also when series change with each scrape."""
        return len(self._ids)

    def _resolve_pending(self) -> int:
        """Gets ids for new and previously refused series; returns the number of series added."""
        if self._refused:
            slots, labels = np.array(list(self._refused), np.int64), list(self._refused.values())
            self._ids[slots] = self.appender.series_ids(labels)
        first, new = len(self._ids), self._pending
        if new:
            self._ids = np.concatenate([self._ids, self.appender.series_ids(new)])
            self._pending = []
            self._refused |= {first + at: new[at] for at in np.flatnonzero(self._ids[first:] == 0).tolist()}
        if self._refused:
            self._refused = {slot: labels for slot, labels in self._refused.items() if not self._ids[slot]}
        return len(new) - sum(slot >= first for slot in self._refused)

    def _parse(self, fetched: Fetched) -> Exposition:
        limit = self._limits.samples
        # Counting lines is much faster than parsing them.
        line_count = fetched.body.count(b"\n")
        if limit and line_count > RAW_LINES_PER_SAMPLE * limit + 10_000:
            why = f"{line_count} lines are too many for {limit} samples (sample_limit)"
            raise ScrapeError(why, "scrape_max_samples")
        lines = line_count - fetched.body.count(b"\n#") - fetched.body.startswith(b"#")
        max_lines = limit * (RAW_LINES_PER_SAMPLE if self.target.job.metric_relabel else 1)
        if limit and lines > max_lines + 1000:  # a margin for blank lines; the exact check follows
            raise _too_many(lines, limit)
        try:
            exposition = self._cache.parse(fetched.body, openmetrics=fetched.openmetrics)
        except LimitError as error:
            raise ScrapeError(f"{error} ({error.limit})", error.limit) from None
        except ParseError as error:
            raise ScrapeError(f"not an exposition: {error}") from None
        if not self.target.job.honor_timestamps and exposition.timed:
            exposition.ids += [slot for slot, _, _ in exposition.timed]
            exposition.values += [value for _, _, value in exposition.timed]
            exposition.timed = []
        if limit and len(exposition.ids) + len(exposition.timed) > limit:
            raise _too_many(len(exposition.ids) + len(exposition.timed), limit)
        return exposition

    def _slot(self, pairs: Pairs) -> int | None:
        """Returns a slot for a new series; None if relabelling drops it."""
        labels = merge_labels(pairs, self._target_labels, self.target.job.honor_labels)
        self._log_clashes(labels)
        if self.target.job.metric_relabel:
            changed = relabel(labels, self.target.job.metric_relabel)
            if not changed:  # rules that remove every label drop the series too
                return None
            labels = changed
        if not labels.get("__name__"):
            raise ScrapeError("relabelling left a series without a name")
        check_labels(labels, self._limits)
        if self._limits.samples and len(self._pending) >= self._limits.samples:
            raise _too_many(len(self._pending) + 1, self._limits.samples)
        self._pending.append(sorted_labels(labels))
        return len(self._ids) + len(self._pending) - 1

    def _log_clashes(self, labels: dict[str, str]) -> None:
        """Once for each label: the owner of every series is then under another name than queries expect."""
        for name in OWNER_LABELS & self._target_labels.keys():
            if f"exported_{name}" in labels and name not in self._logged_clashes:
                self._logged_clashes.add(name)
                log.warning(
                    "job %s, %s: the label %s of its series is stored as exported_%s, because the target has a "
                    "label of that name; set honor_labels: true",
                    *(self.target.job.name, self._target_labels.get("instance", ""), name, name),
                )


def _too_many(samples: int, limit: int) -> ScrapeError:
    why = f"sample limit exceeded: {samples} samples or more, {limit} are allowed (sample_limit)"
    return ScrapeError(why, "scrape_max_samples")


def _first_of_each(
    ids: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    _, first = np.unique(ids, return_index=True)
    if len(first) == len(ids):
        return ids, values, 0
    first.sort()
    return ids[first], values[first], len(ids) - len(first)


def merge_labels(pairs: Pairs, target: dict[str, str], honor: bool) -> dict[str, str]:
    """Merges a scraped series' labels with its target's; `honor` decides which side wins a conflict."""
    own = dict(pairs)
    if honor:
        # An empty label in the exposition also removes the target's label.
        merged = {**target, **own}
        return {name: value for name, value in merged.items() if value != ""}
    clashes = [(name, own[name]) for name in target if own.get(name)]
    merged = {**own, **target}
    for name, value in sorted(clashes, key=lambda pair: len(pair[0])):
        new = f"exported_{name}"
        while merged.get(new):
            new = f"exported_{new}"
        merged[new] = value
    return merged


def check_labels(labels: dict[str, str], limits: JobLimits) -> None:
    """Raises ScrapeError if labels exceed the job's limits, in bytes as in Prometheus."""
    if limits.labels and len(labels) > limits.labels:
        why = f"label limit exceeded: {len(labels)} labels on {_short(labels)} (label_limit)"
        raise ScrapeError(why, "scrape_max_labels")
    for name, value in labels.items():
        if _longer(name, limits.label_name_length):
            why = f"label name too long on {_short(labels)} (label_name_length_limit)"
            raise ScrapeError(why, "scrape_max_label_name_bytes")
        if _longer(value, limits.label_value_length):
            why = f"value of label {name[:60]!r} too long (label_value_length_limit)"
            raise ScrapeError(why, "scrape_max_label_value_bytes")


def _longer(text: str, limit: int) -> bool:
    # A character has at most four bytes, so short text needs no encoding.
    return 0 < limit < 4 * len(text) and len(text.encode("utf-8", "surrogatepass")) > limit


def _short(labels: dict[str, str]) -> str:
    return repr(labels.get("__name__", "")[:80])
