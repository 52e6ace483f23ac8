"""What rules read and write: a PromQL engine of this process or behind HTTP, and a place for samples.

Queries run in the thread of an evaluation and wait for the result; threads may share one `RuleQueries`. Every
failure of an engine is a `RuleQueryError` with the sentence that the rule shows as `lastError`.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from gpuscope.base.errors import GpuscopeError
from gpuscope.history.engines.query_engine import EngineError, QueryEngine
from gpuscope.history.promql import Engine, PromQLError, Scalar, Vector
from gpuscope.history.scrape import Sink
from gpuscope.history.store import Store, StoreError, Tick, UnknownSeriesError
from gpuscope.history.store.options import ROLLUP_TARGET_PREFIX
from gpuscope.judge.rules.shipped.rule_files import is_long_kept
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp

RuleSample = tuple[Labels, float]
ForStateSample = tuple[Labels, int, float]
"""Labels, milliseconds, value."""
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
MAX_REMEMBERED_RULES = 20_000
IGNORED_FOR_STALE = frozenset({"too_old", "duplicate"})


class RuleQueryError(GpuscopeError):
    """The engine gives no result for an expression."""


class RuleQueries(Protocol):
    def instant(self, expression: str, at_ms: int) -> Vector:
        """The value at one time; a scalar is one series without labels. Raises RuleQueryError."""
        ...


class SampleWriter(Protocol):
    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        """Store the samples of one rule, and stale markers for series that ended; return after the commit.
        `rule` identifies the rule. Returns "" or the reason why something was not stored."""
        ...

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        """The newest sample, stale markers included, of each series that has all these labels."""
        ...


class NoSamples:
    """For an engine that is only queried: nothing is stored."""

    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        return ""

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        return ()


class EvaluatorQueries:
    """Over the evaluator of this process. `stopping` ends every query: a slow one must not delay the exit.

    Expressions of `checks` are evaluated as the checks are, reading only what is needed (`skips_unneeded`).
    Rules of others are evaluated whole: an error in any part of them is theirs to see."""

    def __init__(
        self, evaluator: Engine, stopping: threading.Event | None = None, checks: Iterable[str] = ()
    ) -> None:
        self._evaluator = evaluator
        self._stopping = stopping
        self._of_checks = replace(evaluator, skips_unneeded=True)
        self._checks = frozenset(map(_one_line, checks))

    def instant(self, expression: str, at_ms: int) -> Vector:
        try:
            evaluator = self._of_checks if _one_line(expression) in self._checks else self._evaluator
            result = evaluator.instant(expression, at_ms, cancelled=self._stopping)
        except (PromQLError, StoreError) as error:
            raise RuleQueryError(str(error)) from error
        if isinstance(result, Scalar):
            return Vector(result.time_ms, [()], np.array([result.value]))
        if not isinstance(result, Vector):
            raise RuleQueryError("rule result is not a vector or scalar")
        return result


def _one_line(expression: str) -> str:
    """Return an expression without the line breaks of a rule file."""
    return " ".join(expression.split())


class EngineQueries:
    """Over any `QueryEngine`. Each thread has its own, because its connections belong to one event loop, which
    runs only during a query."""

    def __init__(self, new_engine: Callable[[], QueryEngine], timeout_seconds: float) -> None:
        self._new_engine = new_engine
        self._timeout_seconds = timeout_seconds
        self._of_thread = threading.local()

    def instant(self, expression: str, at_ms: int) -> Vector:
        engine, loop = self._own()
        query = engine.instant(expression, at_ms, timeout_seconds=self._timeout_seconds)
        try:
            return loop.run_until_complete(asyncio.wait_for(query, self._timeout_seconds))
        except EngineError as error:
            raise RuleQueryError(str(error)) from error
        except TimeoutError:
            raise RuleQueryError(f"no answer within {self._timeout_seconds:g} s") from None

    def _own(self) -> tuple[QueryEngine, asyncio.AbstractEventLoop]:
        own: tuple[QueryEngine, asyncio.AbstractEventLoop] | None = getattr(self._of_thread, "own", None)
        if own is None:
            own = self._of_thread.own = (self._new_engine(), asyncio.new_event_loop())
        return own

    def close(self) -> None:
        """Close the connections of the calling thread."""
        own: tuple[QueryEngine, asyncio.AbstractEventLoop] | None = getattr(self._of_thread, "own", None)
        if own is not None:
            engine, loop = own
            loop.run_until_complete(engine.close())
            loop.close()
            del self._of_thread.own


class StoreWriter:
    """Several threads may append, each the samples of other rules."""

    def __init__(self, store: Store, sink: Sink | None = None) -> None:
        self._store = store
        self._sink = sink
        self._ids: dict[str, dict[Labels, int]] = {}
        self._epoch = store.epoch

    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        labels = [*(sample for sample, _ in samples), *stale]
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
        series_ids = [known.get(label, 0) for label in labels]
        new = [index for index, series in enumerate(series_ids) if not series]
        if new:
            resolved = self._store.resolve(target, [labels[index] for index in new]).tolist()
            for index, series in zip(new, resolved, strict=True):
                series_ids[index] = series
        # Only the series of this evaluation, and not of rules that reloads have removed: neither may fill the
        # memory.
        if len(self._ids) > MAX_REMEMBERED_RULES:
            self._ids.clear()
        self._ids[rule] = dict(zip(labels, series_ids, strict=True))
        return np.array(series_ids, np.int64)

    def _send(self, at_ms: int, labels: Sequence[Labels], values: Sequence[float]) -> None:
        if self._sink is not None:
            encode = self._sink.encode_labels
            self._sink.take(
                [(encode(series), at_ms, value) for series, value in zip(labels, values, strict=True)]
            )

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        matchers = [Matcher(name, MatchOp.EQUAL, value) for name, value in labels]
        return [
            (series.labels, int(series.timestamps[-1]), float(series.values[-1]))
            for series in self._store.latest(matchers, start_ms, end_ms)
            if len(series.timestamps)
        ]
