"""`SampleWriter` over the store of this process: samples and stale markers of rules, one target for each rule.

Roll-ups are targets of another name, which the store keeps longer. What is stored also goes to the remote-write
queues. A series that the store refuses is left out and the rule says so; its other series are stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from gpuscope.history.scrape.target import Sink
from gpuscope.history.store import Store, StoreError, Tick, UnknownSeriesError
from gpuscope.history.store.options import ROLLUP_TARGET_PREFIX
from gpuscope.judge.rules.interfaces import ForStateSample, RuleSample
from gpuscope.judge.rules.shipped.rollup_rules import is_long_kept
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp

STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
MAX_REMEMBERED_RULES = 20_000
IGNORED_FOR_STALE = frozenset({"too_old", "duplicate"})


class StoreWriter:
    """Several threads may append, each the samples of other rules."""

    def __init__(self, store: Store, sink: Sink | None = None) -> None:
        self._store = store
        self._sink = sink
        self._ids: dict[str, dict[Labels, int]] = {}
        self._epoch = store.epoch

    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        labels = [*(one for one, _ in samples), *stale]
        values = [*(value for _, value in samples), *([STALE] * len(stale))]
        try:
            return self._append(rule, at_ms, labels, values, only_stale=not samples)
        except UnknownSeriesError:  # the store has removed series since their ids were taken
            self._ids.clear()
        except StoreError as error:
            return f"the samples were not stored: {error}"
        try:
            return self._append(rule, at_ms, labels, values, only_stale=not samples)
        except StoreError as error:
            return f"the samples were not stored: {error}"

    def _append(
        self, rule: str, at_ms: int, labels: Sequence[Labels], values: Sequence[float], *, only_stale: bool
    ) -> str:
        is_rollup = is_long_kept(dict(labels[0]).get("__name__", ""))
        target = self._store.target(f"{ROLLUP_TARGET_PREFIX if is_rollup else 'rule '}{rule}")
        ids = self._resolve(rule, target, labels)
        kept = ids > 0
        numbers = np.array(values, np.float64)
        result = self._store.append(Tick(target, at_ms, ids[kept], numbers[kept])) if kept.any() else None
        self._send(at_ms, labels, values)
        if not kept.all():
            return f"{int((~kept).sum())} new series refused: {self._store.series_refused()}"
        refused = {} if result is None else result.refused
        if refused and not (only_stale and refused.keys() <= IGNORED_FOR_STALE):
            return ", ".join(f"{count} samples refused: {why}" for why, count in sorted(refused.items()))
        return ""

    def _resolve(self, rule: str, target: int, labels: Sequence[Labels]) -> np.ndarray:
        epoch = self._store.epoch
        if self._epoch != epoch:
            self._ids.clear()  # first: a thread that sees the new epoch must not find old ids
            self._epoch = epoch
        known = self._ids.get(rule, {})
        found = [known.get(one, 0) for one in labels]
        new = [index for index, series in enumerate(found) if not series]
        if new:
            resolved = self._store.resolve(target, [labels[index] for index in new]).tolist()
            for index, series in zip(new, resolved, strict=True):
                found[index] = series
        # Only the series of this evaluation, and not of rules that reloads have removed: neither may fill the
        # memory.
        if len(self._ids) > MAX_REMEMBERED_RULES:
            self._ids.clear()
        self._ids[rule] = dict(zip(labels, found, strict=True))
        return np.array(found, np.int64)

    def _send(self, at_ms: int, labels: Sequence[Labels], values: Sequence[float]) -> None:
        if self._sink is not None:
            encode = self._sink.encode_labels
            self._sink.take([(encode(one), at_ms, value) for one, value in zip(labels, values, strict=True)])

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        matchers = [Matcher(name, MatchOp.EQUAL, value) for name, value in labels]
        return [
            (series.labels, int(series.timestamps[-1]), float(series.values[-1]))
            for series in self._store.latest(matchers, start_ms, end_ms)
            if len(series.timestamps)
        ]
