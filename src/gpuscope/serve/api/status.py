"""Endpoints about the server itself: its configuration, flags, build, state, and what its store holds.

The keys are Prometheus', because clients read them, also where the thing is another one here: series are in one
store, not in a head, and `goroutineCount` is the number of threads. Keys that only Go has are left out.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope import __version__
from gpuscope.base.time_text import to_rfc3339
from gpuscope.serve.api.go_values import parse_int
from gpuscope.serve.api.parameters import ApiError, Parameters
from gpuscope.serve.api.responses import data_answer
from gpuscope.serve.http.messages import Request, Response

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

API_VERSION = "3.5.0"  # the Prometheus whose API and PromQL this follows; Grafana reads it
NO_LIMIT = 1 << 62

Rows = list[tuple[str, int]]


async def config(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return data_answer({"yaml": api.targets.config_text()})


async def flags(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return data_answer(api.flags)


async def build(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return data_answer(
        {
            "version": API_VERSION,
            "application": "gpuscope",
            "revision": f"gpuscope {__version__}",
            "branch": "",
            "buildUser": "",
            "buildDate": "",
            "goVersion": "",
        }
    )


async def runtime(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    stats = await api.evaluate(request, lambda cancelled: api.store.stats())
    started = to_rfc3339(api.started_at)
    filled_until_ms = api.store.filled_until_ms
    # Not a field of Prometheus: reports end there while a demo fills in its past.
    filled_until = {} if filled_until_ms is None else {"historyFilledUntil": to_rfc3339(filled_until_ms / 1000)}
    return data_answer(
        {
            "startTime": started,
            "CWD": str(Path.cwd()),
            "hostname": socket.gethostname(),
            "serverTime": to_rfc3339(time.time()),
            "reloadConfigSuccess": api.reloads.is_successful,
            "lastConfigTime": started if api.reloads.at is None else to_rfc3339(api.reloads.at),
            "corruptionCount": stats.damaged_chunks,
            "goroutineCount": threading.active_count(),
            "storageRetention": _retention(api),
            **filled_until,
        }
    )


def _retention(api: EmbeddedApi) -> str:
    options = api.store.options
    limits = [f"{options.retention_ms // 3_600_000}h"]
    if options.retention_bytes is not None:
        limits.append(f"{options.retention_bytes}B")
    return " or ".join(limits)


async def tsdb(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    limit = _row_limit(parameters)
    stats, top = await api.evaluate(
        request, lambda cancelled: (api.store.stats(), api.store.cardinality(NO_LIMIT))
    )

    def named(rows: Rows) -> list[dict[str, object]]:
        return [{"name": name, "value": value} for name, value in rows[:limit]]

    return data_answer(
        {
            "headStats": {
                "numSeries": stats.series,
                "numLabelPairs": len(top.by_pair),
                "chunkCount": stats.blocks,
                "minTime": stats.oldest_ms or 0,
                "maxTime": stats.newest_ms or 0,
            },
            "seriesCountByMetricName": named(top.by_metric),
            "labelValueCountByLabelName": named(top.by_label),
            "memoryInBytesByLabelName": named(_bytes_by_label(top.by_pair)),
            "seriesCountByLabelValuePair": named(top.by_pair),
        }
    )


def _row_limit(parameters: Parameters) -> int:
    text = parameters.get("limit")
    try:
        limit = parse_int(text) if text else 10
    except ValueError:
        limit = 0
    if limit < 1:
        raise ApiError("bad_data", "limit must be a positive number")
    return limit


def _bytes_by_label(pairs: Rows) -> Rows:
    """The bytes of each label if it were written for every series, as Prometheus does."""
    sizes: Counter[str] = Counter()
    for pair, series in pairs:
        name, _, value = pair.partition("=")
        sizes[name] += series * sum(_stored_bytes(len(text.encode())) for text in (name, value))
    return sizes.most_common()


def _stored_bytes(length: int) -> int:
    return length + (1 if length < 255 else 4)


async def replay(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    """The replay of Prometheus' write-ahead log; here it is over before the server answers."""
    return data_answer({"min": 0, "max": 0, "current": 0})
