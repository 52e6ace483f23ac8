"""The audit log: one JSON line for each change that a client requested, in `audit.log` of the data folder.

A line has who (user, role, how they proved it, address), what (method, path, a detail that the handler gives),
and how it ended (the HTTP status). Refused changes are in it too, but of unknown clients and of tokens for
remote write, which could fill the file, only a few an hour; the server's log counts the others. Samples that
agents send are not: no person decides on them. The file is renamed to `audit.log.1` when it is full. Failing to
write is logged once and does not stop the change.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.files import append_whole_line
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.time_text import to_rfc3339
from gpuscope.serve.api_types.session_json import AuditEntry
from gpuscope.serve.http.connection_limits import ClientLog

log = logging.getLogger("gpuscope.audit")

FILE_NAME = "audit.log"
AUDIT_DETAIL = "gpuscope.audit_detail"
"""Key in a request's state: what a handler wants in the line, in one short sentence without secrets."""
MAX_DETAIL_CHARACTERS = 500
MAX_ENTRIES_READ = 1000
MAX_UNKNOWN_ENTRIES = 10
UNKNOWN_SECONDS = 3600.0
"""Ten an hour fill a file of 10 MiB in five months."""
MAX_UNKNOWN_CHARACTERS = 100


class AuditLog:
    """For several threads."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_client_log_lines: int = Limits().max_client_log_lines,
    ) -> None:
        self.path = folder / FILE_NAME
        self._max_bytes = max_bytes
        self._clock = clock
        self._monotonic = monotonic
        self._unknown_at: deque[float] = deque()
        self._lock = threading.Lock()
        self._episode = EpisodeLog(log, f"audit log {self.path}")
        self._client_log = ClientLog(log, max_client_log_lines)

    def append_unknown(self, entry: dict[str, Any]) -> None:
        """A refused change of a client that has not proved to be a user."""
        now = self._monotonic()
        with self._lock:
            while self._unknown_at and self._unknown_at[0] <= now - UNKNOWN_SECONDS:
                self._unknown_at.popleft()
            is_recorded = len(self._unknown_at) < MAX_UNKNOWN_ENTRIES
            if is_recorded:
                self._unknown_at.append(now)
        if is_recorded:
            self.append({key: _cut(value, MAX_UNKNOWN_CHARACTERS) for key, value in entry.items()})
        else:
            self._client_log.warning(
                "refused changes that are not in the audit log",
                "refused a change from %s; the audit log has only %d an hour of clients that are no users",
                entry.get("address", ""),
                MAX_UNKNOWN_ENTRIES,
            )

    def append(self, entry: dict[str, Any]) -> None:
        line = {"time": to_rfc3339(self._clock(), "milliseconds"), **{k: _text(v) for k, v in entry.items()}}
        with self._lock:
            try:
                self._rotate_if_full()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                file = os.open(self.path, flags, 0o600)
                try:
                    append_whole_line(file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                finally:
                    os.close(file)
            except OSError as error:
                self._episode.failed(str(error))
            else:
                self._episode.succeeded()

    def _rotate_if_full(self) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return
        if size >= self._max_bytes:
            LIMITS_REACHED.count("audit_log_max_bytes")
            self.path.replace(f"{self.path}.1")

    def newest(self, count: int) -> list[AuditEntry]:
        """The newest entries first; lines that cannot be read are left out."""
        lines: list[bytes] = []
        for path in (Path(f"{self.path}.1"), self.path):
            try:
                lines += path.read_bytes().splitlines()
            except OSError:
                continue
        entries: list[AuditEntry] = []
        for line in reversed(lines[-min(count, MAX_ENTRIES_READ) :]):
            try:
                entries.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                continue
        return entries


def _text(value: object) -> object:
    """The text as JSON can represent it: without lone surrogates, and of limited length."""
    value = _cut(value, MAX_DETAIL_CHARACTERS)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _cut(value: object, characters: int) -> object:
    return value[:characters] if isinstance(value, str) else value
