"""What a target sent, into the store: parse, label, check, append. Runs in a worker's thread.

A series gets its store id only when the whole scrape has passed: a refused one leaves nothing behind. The
cache from raw text therefore holds slots, and an array turns slots into ids. Of a series that stands twice in
one scrape the first counts, as in Prometheus, and the target says so.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.exposition.parser import Exposition, LimitError, Metadata, Pairs, ParseError, SeriesCache
from gpuscope.exposition.series_text import OUT_OF_RANGE_MS
from gpuscope.limits import LIMITS_REACHED
from gpuscope.scrape.fetch import Fetched, ScrapeError
from gpuscope.scrape.job_limits import Limits
from gpuscope.scrape.relabel import relabel
from gpuscope.scrape.target import Target
from gpuscope.scrape.target_appender import Report, TargetAppender, sorted_labels
from gpuscope.series import Labels
from gpuscope.store import Appended

RAW_LINES_PER_SAMPLE = 4
"""How many times `sample_limit` may come in: comments, and what metric relabelling drops."""


@dataclass(frozen=True, slots=True)
class Taken:
    stored: Future[Appended]
    note: str = ""  # what was wrong with a scrape that was taken all the same


class ScrapedTarget:
    """Not for several threads at once."""

    def __init__(self, target: Target, appender: TargetAppender) -> None:
        self.target = target
        self.appender = appender
        self.metadata: dict[str, Metadata] = {}
        self._limits = target.job.limits
        self._target_labels = dict(target.labels)
        self._reset()

    def _reset(self) -> None:
        keep_empty = self.target.job.honor_labels
        self._cache = SeriesCache(self._slot, keep_empty=keep_empty, limits=self._limits.text)
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._pending: list[Labels] = []
        self._refused: dict[int, Labels] = {}
        """Slots whose series the store had no room for, asked for again at each scrape."""

    def fail(self, at_ms: int, duration_seconds: float) -> Future[Appended]:
        if self.appender.refresh():
            self._reset()
        return self.appender.fail(at_ms, duration_seconds)

    def forget(self) -> None:
        """The store has removed series: ask for all ids again."""
        self.appender.forget()
        self._reset()

    def take(self, fetched: Fetched, at_ms: int, started: float) -> Taken:
        """Raises ScrapeError if the scrape is refused. `started` is of the monotonic clock."""
        if self.appender.refresh():
            self._reset()
        try:
            found = self._parse(fetched)
        except ScrapeError:
            self._reset()
            raise
        added = self._resolve_pending()
        slots = np.fromiter(found.ids, np.int64, len(found.ids))
        ids, values = self._ids[slots], np.asarray(found.values, np.float64)
        timed = [(int(self._ids[slot]), at, value) for slot, at, value in found.timed if at != OUT_OF_RANGE_MS]
        kept = len(found.ids) + len(timed)
        if self._refused:
            ids, values, timed = ids[ids > 0], values[ids > 0], [one for one in timed if one[0]]
        ids, values, twice = _first_of_each(ids, values)
        report = Report(True, time.monotonic() - started, found.samples, kept, added)
        track = self.target.job.track_timestamps_staleness
        stored = self.appender.submit(at_ms, ids, values, report, timed, timed_end_too=track)
        self.metadata = found.metadata
        if found.metadata_cut:
            LIMITS_REACHED.count("scrape_max_metadata_bytes")
        self._cache.forget_all_but(8 * kept + 10_000, 4 * len(fetched.body) + (1 << 20))
        note = f"{twice} samples dropped: their series stand twice in the scrape" if twice else ""
        if self._refused:
            note = f"{len(self._refused)} series refused: {self.appender.series_refused()}"
        if len(self._ids) > 4 * kept + 1000:  # series come and go; their texts must not stay
            self._reset()
        return Taken(stored, note)

    def _resolve_pending(self) -> int:
        """Ids for new series, and for those that were refused before; returns how many are new to the store."""
        if self._refused:
            slots, labels = np.array(list(self._refused), np.int64), list(self._refused.values())
            self._ids[slots] = self.appender.series_ids(labels)
        first, new = len(self._ids), self._pending
        if new:
            self._ids = np.concatenate([self._ids, self.appender.series_ids(new)])
            self._pending = []
            self._refused |= {first + at: new[at] for at in np.flatnonzero(self._ids[first:] == 0).tolist()}
        if self._refused:
            self._refused = {slot: one for slot, one in self._refused.items() if not self._ids[slot]}
        return len(new) - sum(slot >= first for slot in self._refused)

    def _parse(self, fetched: Fetched) -> Exposition:
        limit = self._limits.samples
        # Counting lines is quick, splitting and parsing a million of them is not.
        every = fetched.body.count(b"\n")
        if limit and every > RAW_LINES_PER_SAMPLE * limit + 10_000:
            why = f"{every} lines are too many for {limit} samples (sample_limit)"
            raise ScrapeError(why, "scrape_max_samples")
        lines = every - fetched.body.count(b"\n#") - fetched.body.startswith(b"#")
        most = limit * (RAW_LINES_PER_SAMPLE if self.target.job.metric_relabel else 1)
        if limit and lines > most + 1000:  # blank lines count too: leave some room, the exact count follows
            raise _too_many(lines, limit)
        try:
            found = self._cache.parse(fetched.body, openmetrics=fetched.openmetrics)
        except LimitError as error:
            raise ScrapeError(f"{error} ({error.limit})", error.limit) from None
        except ParseError as error:
            raise ScrapeError(f"not an exposition: {error}") from None
        if not self.target.job.honor_timestamps and found.timed:
            found.ids += [slot for slot, _, _ in found.timed]
            found.values += [value for _, _, value in found.timed]
            found.timed = []
        if limit and len(found.ids) + len(found.timed) > limit:
            raise _too_many(len(found.ids) + len(found.timed), limit)
        return found

    def _slot(self, pairs: Pairs) -> int | None:
        """A slot for a series seen for the first time; None for one that relabelling drops."""
        labels = merge_labels(pairs, self._target_labels, self.target.job.honor_labels)
        if self.target.job.metric_relabel:
            changed = relabel(labels, self.target.job.metric_relabel)
            if not changed:  # rules that take every label away drop the series too
                return None
            labels = changed
        if not labels.get("__name__"):
            raise ScrapeError("relabelling left a series without a name")
        check_labels(labels, self._limits)
        if self._limits.samples and len(self._pending) >= self._limits.samples:
            raise _too_many(len(self._pending) + 1, self._limits.samples)
        self._pending.append(sorted_labels(labels))
        return len(self._ids) + len(self._pending) - 1


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
    """The labels of a scraped series: its own and its target's. Who wins a clash is `honor_labels`."""
    own = dict(pairs)
    if honor:
        # An empty label in the exposition means: do not add the target's either.
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


def check_labels(labels: dict[str, str], limits: Limits) -> None:
    """Raises ScrapeError for labels that exceed a job's limits, which are in bytes, as in Prometheus."""
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
    # A character takes four bytes at most: most texts are short enough without counting.
    return 0 < limit < 4 * len(text) and len(text.encode("utf-8", "surrogatepass")) > limit


def _short(labels: dict[str, str]) -> str:
    return repr(labels.get("__name__", "")[:80])
