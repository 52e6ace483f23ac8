"""Requests of a command to a gpuscope server or a Prometheus; a failure is one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuscope.base.errors import GpuscopeError, ServerUnreachable
from gpuscope.base.settings import Settings
from gpuscope.cli.output import printable

if TYPE_CHECKING:
    from gpuscope.judge.reports.report_range import ReportRange

DEFAULT_SERVER = "http://127.0.0.1:9470"
MAX_EXPLANATION = 2000
SIMULATED_GPUS = 'count(last_over_time(gpuscope_gpu_info{simulated="true"}[1d]))'
"""Of a day: while a demo fills in its history, its newest samples are hours old."""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", default=DEFAULT_SERVER, help=f"address of the server ({DEFAULT_SERVER})"
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="API token of a server with a login; better in GPUSCOPE_TOKEN than here",
    )


def token_of(args: argparse.Namespace) -> str:
    return args.token or os.environ.get("GPUSCOPE_TOKEN", "")


@contextmanager
def explained_errors() -> Iterator[None]:
    """Turns an engine's errors into those of a command."""
    from gpuscope.history.engines.query_engine import EngineError, EngineUnreachable

    try:
        yield
    except EngineUnreachable as error:
        raise ServerUnreachable(f"{printable(str(error))}; is `gpuscope up` running?") from None
    except EngineError as error:
        raise GpuscopeError(printable(str(error), MAX_EXPLANATION)) from None


@contextmanager
def expected_form(server: str, what: str) -> Iterator[None]:
    """For code that reads an answer: one of another form is an error of the server, and not a traceback."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError):
        address = printable(server)
        raise GpuscopeError(f"{address} does not answer as {what} does; is this the right address?") from None


def warn_if_simulated(args: argparse.Namespace) -> None:
    """Says on standard error, so that JSON and CSV stay as they are, that the server's data is simulated. Any
    PromQL engine can answer; one that does not, such as an Alertmanager, has no GPUs."""
    from gpuscope.history.engines import http_connection
    from gpuscope.history.engines.query_engine import EngineError

    try:
        connection = http_connection.connect(args.server, origin="--server", token=token_of(args))
        answer = http_connection.post_form(connection, "query", {"query": SIMULATED_GPUS})
        count = int(answer["data"]["result"][0]["value"][1])
    except (EngineError, LookupError, TypeError, ValueError):
        return
    if count > 0:
        print_simulated_warning(args.server, count)


def print_simulated_warning(origin: str, gpus: int) -> None:
    number = "1 GPU is" if gpus == 1 else f"{gpus} GPUs are"
    print(f"gpuscope: {number} simulated at {printable(origin)}, not real", file=sys.stderr)


def read_json(server: str, path: str, *, token: str = "") -> Any:
    """The JSON of one of gpuscope's own routes, such as /api/findings."""
    return request_json(server, "GET", path, token=token)


def request_json(server: str, method: str, path: str, body: Any = None, *, token: str = "") -> Any:
    """`body` is sent as JSON."""
    from gpuscope.history.engines import http_connection

    with explained_errors():
        connection = http_connection.connect(server, origin="--server", token=token)
        return http_connection.request_json(connection, method, path, body)


# The options --since and --until of `report`, `findings` and `job`, and the range that they name.


def add_range_arguments(
    parser: argparse.ArgumentParser, default: str | None, since: str = "where the range begins"
) -> None:
    parser.add_argument(
        "--since",
        metavar="7d",
        default=default,
        help=f"{since}: a duration before now, a date (2026-10, 2026-10-01), a time (2026-10-01T08:00), today, "
        "yesterday, this or last week, month, year" + (f" ({default})" if default else ""),
    )
    parser.add_argument(
        "--until",
        metavar="1d",
        help="where it ends, written as --since; a date is the beginning of its day or month (now)",
    )


def asked_range(args: argparse.Namespace, settings: Settings) -> ReportRange:
    from gpuscope.judge.reports.report_range import parse_range

    flags = "--since", "--until"
    return parse_range(args.since, args.until or "", time.time(), settings.time_zone, flags)
