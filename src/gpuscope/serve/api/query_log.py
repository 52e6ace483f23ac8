"""Prometheus' query log (`query_log_file`): one JSON line for each query and range query that was evaluated.

The fields are Prometheus' own, so that tools for its log read this one too; a query that does not parse is not
logged, one that fails is, with its error. The file is bounded: past its limit it is renamed to FILE.1 and begun
anew. Lines are written by the thread that evaluated the query. A file that cannot be written loses lines, never
queries; the log says so once per episode.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gpuscope.base.errors import UsageError
from gpuscope.base.files import append_whole_line
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import Statistics
from gpuscope.serve.http.messages import Request

log = logging.getLogger("gpuscope.server")

MAX_QUERY_CHARACTERS = 16 << 10
"""Of a query's text in its line; the rest is cut off."""


class QueryLog:
    """Off until `open` is called with a path. For several threads."""

    def __init__(self, max_bytes: int = Limits().query_log_max_bytes) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._file: int | None = None
        self._is_failing = False

    def open(self, path: Path | None) -> None:
        """Begins, goes on in another file, or stops; also reopens a file that was moved away. UsageError if it
        cannot be opened: then everything stays as it was."""
        opened = None if path is None else _open(path)
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._path, self._file, self._is_failing = path, opened, False

    def statistics(self) -> Statistics | None:
        """What a query must count for its line; None while the log is off."""
        return None if self._path is None else Statistics()

    @contextmanager
    def logged(
        self, request: Request, text: str, start_ms: int, end_ms: int, step_ms: int, counted: Statistics | None
    ) -> Iterator[None]:
        """Writes the line of the query that is evaluated inside, also if that raises."""
        error = ""
        try:
            yield
        except Exception as raised:
            error = str(raised)
            raise
        finally:
            if self._path is not None and counted is not None:
                params = {"end": _time(end_ms), "query": _cut(text), "start": _time(start_ms)}
                line = _line({**params, "step": step_ms // 1000}, error, counted, request)
                self._write(line)

    def _write(self, line: bytes) -> None:
        with self._lock:
            if self._path is None:
                return
            try:
                if self._file is not None and _is_full(self._file, self._max_bytes):
                    LIMITS_REACHED.count("query_log_max_bytes")
                    self._path.replace(f"{self._path}.1")
                    os.close(self._file)
                    self._file = None
                if self._file is None:  # after a rename, or because it could not be opened then
                    self._file = _open(self._path)
                append_whole_line(self._file, line)
            except (OSError, UsageError) as error:
                if not self._is_failing:
                    log.error("query_log_file %s cannot be written: %s; queries go on", self._path, error)
                self._is_failing = True
            else:
                self._is_failing = False


def _open(path: Path) -> int:
    try:
        # Without O_NONBLOCK the open of a pipe would wait for its reader.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UsageError(f"query_log_file {path}: {error.strerror}") from None
    return opened


def _is_full(file: int, max_bytes: int) -> bool:
    state = os.fstat(file)
    return stat.S_ISREG(state.st_mode) and state.st_size >= max_bytes  # /dev/stdout is never full


def _line(params: dict[str, Any], error: str, counted: Statistics, request: Request) -> bytes:
    now = time.time_ns()
    seconds = datetime.fromtimestamp(now // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    entry: dict[str, Any] = {
        "time": f"{seconds}.{now % 10**9:09d}Z",
        "level": "INFO",
        "source": "gpuscope",
        "msg": "promql query logged",
        "params": params,
        **({"error": _cut(error)} if error else {}),
        "stats": counted.as_json(),
        "spanID": "0000000000000000",
        "httpRequest": {"clientIP": request.peer, "method": request.method, "path": _cut(request.path)},
    }
    return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def _cut(text: str) -> str:
    """The text as JSON can represent it: without lone surrogates."""
    return text[:MAX_QUERY_CHARACTERS].encode("utf-8", "replace").decode()


def _time(at_ms: int) -> str:
    try:
        seconds = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a year that has more than four digits
        return f"{at_ms}ms"
    return f"{seconds}.{at_ms % 1000:03d}Z"
