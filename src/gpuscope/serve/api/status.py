"""Endpoints about the server itself: targets, configuration, reloads, flags, build, state, and its store.

The keys are Prometheus', because clients read them, also where the thing is another one here: series are in one
store, not in a head, and `goroutineCount` is the number of threads. Keys that only Go has are left out. Nodes
that send by remote write are listed beside the scrape targets.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gpuscope import __version__
from gpuscope.base.time_text import to_rfc3339
from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.store import Store
from gpuscope.history.store.series_pairs import predicate
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.model.exposition.sample import MetricFamily, single_metric
from gpuscope.model.series import Matcher
from gpuscope.serve.api.parameters import ApiError, Parameters, bad, parse_int
from gpuscope.serve.api.responses import JSON, data_answer
from gpuscope.serve.api_types.session_json import ReloadAnswer, ServerAnswer
from gpuscope.serve.http.messages import Request, Response, Route, text

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

API_VERSION = "3.5.0"  # the Prometheus whose API and PromQL this follows; Grafana reads it
NO_LIMIT = 1 << 62

Rows = list[tuple[str, int]]
Metadata = Mapping[str, str]
"""`type`, `help` and `unit`."""
PushedTargetsJson = Callable[[Collection[str]], Awaitable[list[dict[str, Any]]]]
"""The nodes that send by remote write, without those of these instances."""


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


class Targets(Protocol):
    """The scraper, as the API sees it."""

    def targets_json(self, state: str) -> dict[str, Any]: ...

    def metadata(self) -> dict[str, list[dict[str, str]]]: ...

    def target_metadata(self) -> Iterable[tuple[Mapping[str, str], Mapping[str, Metadata]]]:
        """Each target's labels, and its metadata by metric."""
        ...

    def config_text(self) -> str: ...


async def no_pushed_targets(instances: Collection[str]) -> list[dict[str, Any]]:
    return []


class NoTargets:
    """For a server that scrapes nothing."""

    def targets_json(self, state: str) -> dict[str, Any]:
        return {"activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {}}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        return {}

    def target_metadata(self) -> Iterable[tuple[Mapping[str, str], Mapping[str, Metadata]]]:
        return ()

    def config_text(self) -> str:
        return ""


async def targets(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    state, pool = parameters.from_url("state").lower() or "any", parameters.from_url("scrapePool")
    listed = api.targets.targets_json(state)
    if state != "dropped":
        instances = {target["labels"].get("instance", "") for target in listed["activeTargets"]}
        listed["activeTargets"] += await api.pushed_targets(instances)
    if state not in ("any", "active"):
        listed["activeTargets"] = []
    if state not in ("any", "dropped"):
        listed |= {"droppedTargets": [], "droppedTargetCounts": None}
    for kind in ("activeTargets", "droppedTargets"):
        kept = [entry for entry in listed[kind] if not pool or entry["scrapePool"] == pool]
        listed[kind] = sorted(kept, key=lambda record: record["scrapePool"])
    return data_answer(listed)


async def scrape_pools(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    listed = api.targets.targets_json("any")
    active = {target["scrapePool"] for target in listed["activeTargets"]}
    return data_answer({"scrapePools": sorted(active | listed["droppedTargetCounts"].keys())})


async def metadata(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    limit, each = parameters.number("limit"), parameters.number("limit_per_metric")
    known, wanted = api.targets.metadata(), parameters.get("metric")
    names = sorted(known) if not wanted else [wanted] if wanted in known else []
    if limit >= 0:
        names = names[:limit]
    return data_answer({name: known[name][:each] if each > 0 else known[name] for name in names})


async def target_metadata(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    limit, matchers, metric = parameters.number("limit"), _target_matchers(parameters), parameters.get("metric")
    rows: list[dict[str, Any]] = []
    for labels, known in api.targets.target_metadata():
        # Checked between targets only: the metadata of one target are not cut.
        if 0 <= limit <= len(rows):
            break
        if not all(predicate(matcher)(labels.get(matcher.name, "")) for matcher in matchers):
            continue
        if not metric:
            rows += [{"target": labels, "metric": name, **entry} for name, entry in known.items()]
        elif metric in known:
            rows.append({"target": labels, **known[metric]})
    return data_answer(rows)


def _target_matchers(parameters: Parameters) -> list[Matcher]:
    text = parameters.get("match_target")
    try:
        return parse_selector(text) if text else []
    except BadQueryError as error:
        raise bad("match_target", error) from None


async def notifications(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return data_answer([])


# Whether the last reload of configuration, rule files and idle policy worked, and why not.
#
# Shown by `/api/v1/status/runtimeinfo` and as `prometheus_config_last_reload_*`, which alerts watch.


@dataclass(slots=True)
class ReloadStatus:
    """Times are those of the last success; None: the start."""

    error: str = ""
    at: float | None = None
    policy_error: str = ""
    """Of the idle policy's file."""
    policy_at: float | None = None

    @property
    def is_successful(self) -> bool:
        return not self.error and not self.policy_error

    def failed(self, reason: str) -> None:
        self.error = reason

    def succeeded(self) -> None:
        self.error, self.at = "", time.time()

    def policy_failed(self, reason: str) -> None:
        self.policy_error = reason

    def policy_succeeded(self) -> None:
        self.policy_error, self.policy_at = "", time.time()

    def families(self, started_at: float) -> Iterator[MetricFamily]:
        help_text = (
            "1 if the last reload of configuration, rules and idle policy worked, 0 if an older one is in use."
        )
        is_good, loaded_at = int(self.is_successful), started_at if self.at is None else self.at
        yield single_metric("prometheus_config_last_reload_successful", "gauge", help_text, is_good)
        name = "prometheus_config_last_reload_success_timestamp_seconds"
        yield single_metric(name, "gauge", "Time of the last successful load of the configuration.", loaded_at)


# `POST /-/reload`, which reads all files again, and `GET /api/reload`: which of them were refused, and why.
#
# The first one answers as Prometheus and Alertmanager do, for the programs that watch configuration files. It
# is always there, as in Alertmanager; with a login it requires an admin (`login/access_rules.py`).
# Prometheus' `status/runtimeinfo` only says that a reload failed, and belongs to the engine behind `--store`.

RELOAD_PATH = "/api/reload"


def reload_answer(status: ReloadStatus, notifier: Notifier, started_at: float) -> ReloadAnswer:
    return {
        "rules": {"error": status.error, "loaded_at": started_at if status.at is None else status.at},
        "idle_policy": {
            "error": status.policy_error,
            "loaded_at": started_at if status.policy_at is None else status.policy_at,
        },
        "alerting": {"error": notifier.reload_error, "loaded_at": notifier.counters.reloaded_at},
    }


def reload_routes(
    status: ReloadStatus, notifier: Notifier, started_at: float, reload: Callable[[], None]
) -> list[Route]:
    """`reload` reads the files and leaves the result in `status` and `notifier`."""

    async def answer(request: Request) -> Response:
        return Response(orjson.dumps(reload_answer(status, notifier, started_at)), 200, JSON)

    async def run(request: Request) -> Response:
        reload()  # in the event loop, as after SIGHUP: two reloads never overlap
        problems = [part for part in (status.error, status.policy_error, notifier.reload_error) if part]
        return text(f"failed to reload config: {'; '.join(problems)}", 500) if problems else Response()

    return [Route(RELOAD_PATH, answer), Route("/-/reload", run, ("POST", "PUT"))]


# `GET /api/server`: version, history and disk, as the page's settings show them.


def server_route(read: Callable[[], ServerAnswer]) -> Route:
    async def answer(request: Request) -> Response:
        return Response(orjson.dumps(await asyncio.to_thread(read)), 200, JSON)

    return Route("/api/server", answer)


def engine_status(url: str, *, has_login: bool) -> Callable[[], ServerAnswer]:
    """Of a server over another engine, which keeps the history."""
    started_at = time.time()
    return lambda: {
        "version": __version__,
        "started_at": started_at,
        "has_login": has_login,
        "engine": url,
    }


def store_status(
    store: Store, folder: Path, retention_seconds: float, retention_bytes: int | None, *, has_login: bool
) -> Callable[[], ServerAnswer]:
    """Of a server with a store of its own."""
    started_at = time.time()

    def read() -> ServerAnswer:
        stats = store.stats()
        answer: ServerAnswer = {
            "version": __version__,
            "started_at": started_at,
            "has_login": has_login,
            "data_folder": str(folder),
            "retention_seconds": retention_seconds,
            "disk_bytes": stats.disk_bytes,
            "series": stats.series,
            "counted_series": stats.counted_series,
        }
        if stats.max_series is not None:
            answer["max_series"] = stats.max_series
        if retention_bytes:
            answer["retention_bytes"] = retention_bytes
        if stats.oldest_ms is not None:
            answer["oldest_at"] = stats.oldest_ms / 1000
        try:
            disk = os.statvfs(folder)
        except OSError:  # the folder is gone; `disk_bytes` says so elsewhere
            return answer
        answer["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        return answer

    return read
