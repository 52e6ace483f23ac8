"""Decides whether a query is so small that running it in a thread costs more than evaluating it at once.

A small query reads few samples of few series, all of which the store has in memory (`count_in_memory`; a store
without it has no small queries). Safe to call on an event loop: nothing here reads a file, waits, or searches
an index.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.history.promql.durations import INSTANT, QueryTimes
from gpuscope.history.promql.frame import Steps
from gpuscope.history.promql.parse import parse
from gpuscope.history.promql.syntax import (
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    MatrixSelector,
    Negation,
    Number,
    String,
    VectorSelector,
)
from gpuscope.model.series import Storage

MAX_CHARACTERS = 500
"""Longer queries are not parsed to find out."""
MAX_SERIES = 32
MAX_SAMPLES = 4_000
"""Samples read: about a millisecond of work."""

_Selector = tuple[VectorSelector, int | None]


def is_small(text: str, storage: Storage, steps: Steps, lookback_ms: int, times: QueryTimes = INSTANT) -> bool:
    count_in_memory = getattr(storage, "count_in_memory", None)
    if count_in_memory is None or len(text) > MAX_CHARACTERS:
        return False
    series = numbers = 0
    for selector, range_ms in _selectors(parse(text, times)):
        if selector.at is not None:
            return False
        start_ms = steps.start_ms - selector.offset_ms - (range_ms or lookback_ms)
        found: tuple[int, int] | None = count_in_memory(
            selector.matchers, start_ms, steps.end_ms - selector.offset_ms
        )
        if found is None:
            return False
        series += found[0]
        # Each step reads one sample of a series, or all samples of its window.
        numbers += found[1] * steps.count if range_ms else found[1] + found[0] * steps.count
    return series <= MAX_SERIES and numbers <= MAX_SAMPLES


def _selectors(expr: Expr) -> Iterator[_Selector]:
    """Yield every selector with its range; `_NEVER_SMALL` for expressions that may be expensive otherwise."""
    match expr:
        case Number() | String():
            return
        case VectorSelector():
            yield expr, None
        case MatrixSelector():
            yield expr.vector, expr.range_ms
        case Negation():
            yield from _selectors(expr.expr)
        case Binary():
            yield from _selectors(expr.left)
            yield from _selectors(expr.right)
        case Aggregate():
            yield from _selectors(expr.expr)
            if expr.param is not None:
                yield from _selectors(expr.param)
        case FunctionCall(name=("label_replace" | "label_join")):
            yield _NEVER_SMALL  # 500 characters of nested calls can use the whole budget for label text
        case FunctionCall():
            for one in expr.args:
                yield from _selectors(one)
        case _:
            yield _NEVER_SMALL


_NEVER_SMALL: _Selector = VectorSelector((), at="start"), None
