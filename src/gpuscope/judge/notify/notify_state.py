"""Silences, the notification log and the history in an SQLite file: they survive a restart and kill -9.

Each change is one committed transaction. An entry of log or history that cannot be written is logged once per
episode and kept in memory only; a silence that cannot be written is refused, because its author relies on it.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.alert_matchers import AlertMatcher
from gpuscope.judge.notify.channel import ChannelKey
from gpuscope.judge.notify.notification_log import LogEntry, LogKey, NotificationRecord, NotifiedAlert, Outcome
from gpuscope.judge.notify.silences import Silence, SilenceNotStored
from gpuscope.model.series import MatchOp

log = logging.getLogger("gpuscope.notify")
FILE_NAME = "notifications.sqlite"
_SCHEMA = """
create table if not exists silences (id text primary key, document text not null) without rowid;
create table if not exists log (
    group_key text, receiver text, integration text, position integer,
    sent_at real not null, expires_at real not null, firing text not null, resolved text not null,
    told text not null default '',
    primary key (group_key, receiver, integration, position)
) without rowid;
create table if not exists history (id integer primary key, document text not null);
"""


class NotifyState:
    """Not for several threads at once, but a thread may continue what another began.

    The file is created with the first change: a server without alerts has none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._episode = EpisodeLog(log, f"notification log {path}")
        self._opened: sqlite3.Connection | None = None
        if path.exists():
            try:
                self._open()
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}; choose another folder with --data") from None
            except sqlite3.Error as error:
                raise UsageError(f"{path}: {error}; {_advice(error)}") from None

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=5)
            try:
                database.execute("pragma journal_mode = wal")
                database.execute("pragma synchronous = full")
                database.executescript(_SCHEMA)
                if not database.execute(
                    "select 1 from pragma_table_info('log') where name = 'told'"
                ).fetchone():
                    database.execute("alter table log add column told text not null default ''")
            except BaseException:
                database.close()
                raise
            self._opened = database
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def silences(self) -> list[Silence]:
        if self._opened is None:
            return []
        rows = self._opened.execute("select document from silences").fetchall()
        return [_silence(json.loads(document)) for (document,) in rows]

    def entries(self) -> list[tuple[LogKey, LogEntry]]:
        if self._opened is None:
            return []
        rows = self._opened.execute("select * from log").fetchall()
        return [
            (
                LogKey(*row[:4]),
                LogEntry(
                    row[4], row[5], frozenset(row[6].split()), frozenset(row[7].split()), _told_at(row[8])
                ),
            )
            for row in rows
        ]

    def history(self) -> list[NotificationRecord]:
        if self._opened is None:
            return []
        rows = self._opened.execute("select document from history").fetchall()
        return [_record(json.loads(document)) for (document,) in rows]

    def save_silence(self, silence: Silence) -> None:
        try:
            self._open().execute(
                "insert or replace into silences values (?, ?)", (silence.id, json.dumps(_document(silence)))
            )
        except (sqlite3.Error, OSError) as error:
            raise SilenceNotStored(f"the silence could not be stored: {error}") from None

    def forget_silences(self, ids: Iterable[str]) -> None:
        self._write(("delete from silences where id = ?", [(silence_id,) for silence_id in ids]))

    def save_entry(self, key: LogKey, entry: LogEntry) -> None:
        told = " ".join(f"{alert}={at!r}" for alert, at in entry.told_at.items())
        row = (*key, entry.sent_at, entry.expires_at, " ".join(entry.firing), " ".join(entry.resolved), told)
        self._write(("insert or replace into log values (?, ?, ?, ?, ?, ?, ?, ?, ?)", [row]))

    def forget_entries(self, keys: Iterable[LogKey]) -> None:
        statement = "delete from log where group_key = ? and receiver = ? and integration = ? and position = ?"
        self._write((statement, [tuple(key) for key in keys]))

    def save_records(self, changed: Sequence[NotificationRecord], forgotten: Sequence[int]) -> None:
        self._write(
            (
                "insert or replace into history values (?, ?)",
                [(record.id, json.dumps(asdict(record))) for record in changed],
            ),
            ("delete from history where id = ?", [(record_id,) for record_id in forgotten]),
        )

    def _write(self, *statements: tuple[str, list[tuple[object, ...]]]) -> None:
        try:
            database = self._open()
            database.execute("begin")
            try:
                for statement, rows in statements:
                    database.executemany(statement, rows)
                database.execute("commit")
            except BaseException:
                database.execute("rollback")
                raise
        except (sqlite3.Error, OSError) as error:
            self._episode.failed(str(error), kind=type(error).__name__)
        else:
            self._episode.succeeded()


def _advice(error: sqlite3.Error) -> str:
    """Only a damaged file may go: with it go the silences."""
    if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "it is damaged: move the file away to start without silences"
    return (
        "it has the silences, so keep it; free space and inodes of its file system, and check its permissions"
    )


def _told_at(text: str) -> dict[str, float]:
    pairs = [pair.partition("=") for pair in text.split()]
    return {alert: float(at) for alert, _, at in pairs}


def _document(silence: Silence) -> dict[str, object]:
    return {
        "id": silence.id,
        "matchers": [(matcher.name, matcher.op.value, matcher.value) for matcher in silence.matchers],
        "starts_at": silence.starts_at,
        "ends_at": silence.ends_at,
        "updated_at": silence.updated_at,
        "created_by": silence.created_by,
        "comment": silence.comment,
        "annotations": list(silence.annotations),
    }


def _silence(document: dict[str, Any]) -> Silence:
    fields = dict(document)
    matchers, annotations = fields.pop("matchers"), fields.pop("annotations")
    return Silence(
        matchers=tuple(AlertMatcher(name, MatchOp(op), value) for name, op, value in matchers),
        annotations=tuple((name, value) for name, value in annotations),
        **fields,
    )


def _record(document: dict[str, Any]) -> NotificationRecord:
    fields = dict(document)
    channel, outcome, alerts = fields.pop("channel"), fields.pop("outcome"), fields.pop("alerts")
    return NotificationRecord(
        channel=ChannelKey(*channel),
        outcome=Outcome(outcome),
        alerts=tuple(NotifiedAlert(**alert) for alert in alerts),
        **fields,
    )
