"""`GET /api/report`, a usage report as JSON, CSV or HTML, and `GET /api/job`, a receipt; made in threads.

Parameters of a report: `kind` (usage, idle), `by`, `since` and `until` (as `parse_range` reads them) or `start`
and `end` (the same), `time_zone`, `rate`, `rate_basis`, `co2`, `history`, `format`; of a receipt:
`id`, `since`, `until`, `time_zone`, `format`. A mistake is one sentence with status 400.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Final, TypeVar, cast
from urllib.parse import parse_qs

import orjson

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.setting_values import parse_argument
from gpuscope.base.time_text import parse_time_zone
from gpuscope.history.engines.query_engine import EngineError, EngineQueryTimeout, QueryEngine
from gpuscope.judge.reports.findings.finding_windows import Window
from gpuscope.judge.reports.rates import Rates, parse_co2_factor, parse_rates
from gpuscope.judge.reports.receipt.job_question import JobNotFound, parse_job
from gpuscope.judge.reports.receipt.receipt_reader import PastWindows, read_receipt
from gpuscope.judge.reports.receipt.receipt_text import receipt_page
from gpuscope.judge.reports.report_page import CONTENT_SECURITY_POLICY
from gpuscope.judge.reports.report_range import ReportRange, parse_range
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_history import HistorySource
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.reports.usage.usage_text import to_csv, to_html
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.report_json import ReportKind
from gpuscope.serve.http.messages import Request, Response, Route
from gpuscope.serve.reports.report_answers import job_answer, usage_answer

MAX_SECONDS: Final = 300.0
"""For one report; a query's own time limit is usually reached first."""
MAX_FIELDS: Final = 50
PARAMETERS: Final = (
    "kind", "by", "since", "until", "start", "end", "time_zone", "rate", "rate_basis", "co2", "history",
    "format",
)  # fmt: skip
JOB_PARAMETERS: Final = ("id", "since", "until", "time_zone", "format")
DEFAULT_SINCE: Final = "7d"
DEFAULT_JOB_SINCE: Final = "30d"
T = TypeVar("T")
NewEngine = Callable[[], QueryEngine]
"""An engine for one report: its event loop is another one than the server's."""


class ReportThreads:
    """Runs reports beside the event loop, few at a time."""

    def __init__(self, new_engine: NewEngine, limits: Limits) -> None:
        self._new_engine = new_engine
        self._free = limits.report_max_concurrency

    async def run(self, make: Callable[[QueryEngine], Awaitable[T]]) -> T:
        """Raises ReportsBusy if too many run."""
        if self._free <= 0:
            LIMITS_REACHED.count("report_max_concurrency")
            raise ReportsBusy("other reports are being made; try again")
        self._free -= 1
        try:
            return await asyncio.to_thread(self._run, make)
        finally:
            self._free += 1

    def _run(self, make: Callable[[QueryEngine], Awaitable[T]]) -> T:
        async def run() -> T:
            engine = self._new_engine()
            try:
                return await asyncio.wait_for(make(engine), MAX_SECONDS)
            except TimeoutError:
                raise EngineQueryTimeout(f"the report took longer than {MAX_SECONDS:g} s") from None
            finally:
                await engine.close()

        return asyncio.run(run())


class ReportsBusy(EngineError):
    default_status = 503


def report_routes(
    threads: ReportThreads,
    limits: Limits,
    clock: Callable[[], float] = time.time,
    past_windows: PastWindows | None = None,
) -> list[Route]:
    """`past_windows` are those of the server's ledger, read in its event loop."""

    async def report(request: Request) -> Response:
        try:
            fields = read_fields(request, PARAMETERS)
            kind = _one_of(fields, "kind", ("usage", "idle"), "usage")
            form = _one_of(fields, "format", ("json", "csv", "html"), "json")
            question = read_question(fields, clock())
            made: UsageReport = await threads.run(lambda engine: usage_report(engine, question))
        except UsageError as error:
            return Response(failure("bad_data", str(error)), 400, JSON)
        except EngineError as error:
            return Response(failure(error.error_type, str(error)), error.status, JSON)
        return await asyncio.to_thread(_to_response, made, cast(ReportKind, kind), form, limits.report_max_rows)

    async def job(request: Request) -> Response:
        try:
            fields = read_fields(request, JOB_PARAMETERS)
            asked = read_range({"since": DEFAULT_JOB_SINCE, **fields}, clock())
            question = parse_job(fields.get("id", ""), asked.start_ms, asked.end_ms, "id")
            form = _one_of(fields, "format", ("json", "html"), "json")
            known = None if past_windows is None else _from_other_threads(past_windows)
            receipt = await threads.run(lambda engine: read_receipt(engine, question, known))
        except JobNotFound as error:
            return Response(failure("not_found", str(error)), 404, JSON)
        except UsageError as error:
            return Response(failure("bad_data", str(error)), 400, JSON)
        except EngineError as error:
            return Response(failure(error.error_type, str(error)), error.status, JSON)
        if form == "html":
            return _html(receipt_page(receipt))
        return Response(orjson.dumps(job_answer(receipt)), 200, JSON)

    return [Route("/api/report", report), Route("/api/job", job)]


def _from_other_threads(past_windows: PastWindows) -> PastWindows:
    """The same, for the event loop of a report's thread."""
    loop = asyncio.get_running_loop()

    async def windows(start_ms: int, end_ms: int) -> Sequence[Window]:
        async def read() -> Sequence[Window]:
            return await past_windows(start_ms, end_ms)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(read(), loop))

    return windows


def _to_response(report: UsageReport, kind: ReportKind, form: str, max_rows: int) -> Response:
    if kind == "idle":
        report.sort_by_idle()
    if form == "html":
        return _html(to_html(report, kind))
    if form == "csv":
        return Response(to_csv(report, csv_name).encode(), 200, "text/csv; charset=utf-8")
    if len(report.rows) > max_rows:
        LIMITS_REACHED.count("report_max_rows")
    return Response(orjson.dumps(usage_answer(report, kind, max_rows)), 200, JSON)


def _html(page: str) -> Response:
    policy = ("content-security-policy", CONTENT_SECURITY_POLICY)
    return Response(page.encode(), 200, "text/html; charset=utf-8", (policy,))


def csv_name(value: object) -> str:
    """A name that a spreadsheet does not take for a formula."""
    text = str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def read_fields(request: Request, known: tuple[str, ...]) -> dict[str, str]:
    try:
        found = parse_qs(request.query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise UsageError(f"more than {MAX_FIELDS} parameters") from None
    for name, values in found.items():
        if name not in known:
            raise UsageError(f"unknown parameter {name[:100]!r}; there are {', '.join(known)}")
        if len(values) > 1:
            raise UsageError(f"{name} is given {len(values)} times")
    return {name: values[0] for name, values in found.items() if values[0]}


def read_question(fields: Mapping[str, str], now: float) -> UsageQuestion:
    asked = read_range(fields, now)
    rates: Rates | None = None
    if "rate" in fields:
        rates = parse_rates(fields["rate"], fields.get("rate_basis", "held"), "rate")
    co2 = parse_co2_factor(fields["co2"], "co2") if "co2" in fields else None
    source = _one_of(fields, "history", ("auto", "samples", "rollups"), "auto")
    grouping = parse_grouping(fields.get("by", "user"), "by")
    zone = read_time_zone(fields)
    return UsageQuestion(grouping, asked.start_ms, asked.end_ms, rates, co2, cast(HistorySource, source), zone)


def read_range(fields: Mapping[str, str], now: float) -> ReportRange:
    """`start` and `end` are other names of `since` and `until`."""
    first, last = "start" if "start" in fields else "since", "end" if "end" in fields else "until"
    since, until = fields.get(first, DEFAULT_SINCE), fields.get(last, "")
    return parse_range(since, until, now, read_time_zone(fields), (first, last))


def read_time_zone(fields: Mapping[str, str]) -> tzinfo | None:
    """UTC, where the client names none: its machine is another one than the server's."""
    return parse_argument(parse_time_zone, fields.get("time_zone", "UTC"), "time_zone")


def _one_of(fields: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    found = fields.get(name, default)
    if found not in choices:
        raise UsageError(f"{name}: {found[:100]!r} is not one of {', '.join(choices)}")
    return found
