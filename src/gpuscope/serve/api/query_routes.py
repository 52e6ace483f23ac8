"""Endpoints that take a PromQL expression: query, query_range, query_exemplars, format_query and parse_query.

Parameters are checked in Prometheus' order, so that of two mistakes the same one is reported. Expressions are
parsed in the query's thread, unless they are short: a long one takes a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from gpuscope.history.promql import BadQueryError, Statistics, format_query, parse
from gpuscope.history.promql.ast_json import describe, has_selector
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.durations import INSTANT, QueryTimes
from gpuscope.history.promql.frame import Steps
from gpuscope.history.promql.result import Result, Scalar, Text, first_series, result_size
from gpuscope.history.promql.syntax import ValueType, value_type
from gpuscope.serve.api.encode import POINTS_PER_PIECE, encode_result, result_pieces, success, success_pieces
from gpuscope.serve.api.parameters import ApiError, Parameters, bad
from gpuscope.serve.api.responses import Body, LargeBody, Packer, data_answer, packer
from gpuscope.serve.http.messages import Request, Response

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

TRUNCATED = "results truncated due to limit"
MAX_STEPS = 11_000
TOO_MANY_POINTS = (
    "exceeded maximum resolution of 11,000 points per timeseries."
    " Try decreasing the query resolution (?step=XX)"
)
NO_STEP = "zero or negative query resolution step widths are not accepted. Try a positive integer"
_TYPE_NAMES = {ValueType.MATRIX: "range vector", ValueType.STRING: "string"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def query(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    received_at = time.monotonic()
    limit, at = parameters.limit(), parameters.time_ms("time", now_ms())
    timeout, lookback = parameters.seconds("timeout"), parameters.lookback_ms()
    text, statistics, packs = parameters.get("query"), _statistics(parameters), packer(request)
    recorded = statistics or api.query_log.statistics()

    def work(cancelled: threading.Event) -> Body | LargeBody:
        _parsed(text, INSTANT)
        budget = api.engine.budget(timeout, cancelled, received_at=received_at)
        with api.query_log.logged(request, text, at, at, 0, recorded):
            result = api.engine.instant(text, at, lookback_ms=lookback, statistics=recorded, budget=budget)
        return _packed(result, limit, statistics, packs, budget)

    small = api.engine.is_small(text, Steps(at, 1, 1), INSTANT, lookback)
    return await api.answer(request, work, small=small)


async def query_range(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    received_at = time.monotonic()
    limit, start, end = parameters.limit(), parameters.time_ms("start"), parameters.time_ms("end")
    if end < start:
        raise bad("end", "end timestamp must not be before start time")
    step = parameters.duration_ms("step")
    if step <= 0:
        raise bad("step", NO_STEP)
    if (end - start) // step > MAX_STEPS:
        raise ApiError("bad_data", TOO_MANY_POINTS)
    times = QueryTimes(step, end - start)
    timeout, lookback = parameters.seconds("timeout"), parameters.lookback_ms()
    text, statistics, packs = parameters.get("query"), _statistics(parameters), packer(request)
    recorded = statistics or api.query_log.statistics()

    def work(cancelled: threading.Event) -> Body | LargeBody:
        kind = _TYPE_NAMES.get(_parsed(text, times))
        if kind is not None:
            wrong = f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector'
            raise bad("query", wrong)
        budget = api.engine.budget(timeout, cancelled, received_at=received_at)
        with api.query_log.logged(request, text, start, end, step, recorded):
            result = api.engine.range(
                text, start, end, step, lookback_ms=lookback, statistics=recorded, budget=budget
            )
        return _packed(result, limit, statistics, packs, budget)

    small = api.engine.is_small(text, Steps.between(start, end, step), times, lookback)
    return await api.answer(request, work, small=small)


def _parsed(text: str, times: QueryTimes) -> ValueType:
    try:
        return value_type(parse(text, times))
    except BadQueryError as error:
        raise bad("query", error) from None


def _statistics(parameters: Parameters) -> Statistics | None:
    wanted = parameters.get("stats")
    return Statistics(per_step=wanted == "all", received_at=time.perf_counter()) if wanted else None


def _packed(
    result: Result, limit: int | None, statistics: Statistics | None, packs: Packer, budget: Budget
) -> Body | LargeBody:
    warnings = result.warnings
    if limit is not None and not isinstance(result, Scalar | Text) and len(result.labels) > limit:
        result, warnings = first_series(result, limit), (*warnings, TRUNCATED)
    statistics_json = orjson.dumps(statistics.as_json()) if statistics is not None else b""
    size = result_size(result)
    if size <= POINTS_PER_PIECE:
        budget.close()
        return packs.whole(success(encode_result(result, statistics_json), warnings, result.infos))
    budget.keep_only(size)
    return packs.pack(success_pieces(result_pieces(result, statistics_json), warnings, result.infos), budget)


async def format_a_query(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return await _parse_and_answer(api, request, parameters, format_query)


async def parse_a_query(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return await _parse_and_answer(api, request, parameters, describe)


async def _parse_and_answer(
    api: EmbeddedApi, request: Request, parameters: Parameters, convert: Callable[[str], object]
) -> Response:
    text = parameters.get("query")

    def work(cancelled: threading.Event) -> object:
        try:
            return convert(text)
        except BadQueryError as error:
            raise bad("query", error) from None

    return data_answer(await api.evaluate(request, work))


async def query_exemplars(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    """Exemplars are not stored, so the result is empty; the parameters are still checked."""
    start, end = parameters.span_ms()
    if start is not None and end is not None and end < start:
        raise ApiError("bad_data", "end timestamp must not be before start timestamp")
    text = parameters.get("query")

    def work(cancelled: threading.Event) -> bool:
        return has_selector(describe(text))

    # Without a selector Prometheus answers 204.
    return data_answer([]) if await api.evaluate(request, work) else Response(status=204)
