"""The store's exceptions.

StoreError
├── StoreLockedError      another process uses the folder
├── StoreFullError        the disk is full; nothing was stored, retry later
├── StoreDamagedError     the file cannot be read as a database
├── StoreTooNewError      the file was written by a newer version
├── StoreClosedError      the store is closed or read-only
├── UnknownSeriesError    a tick contains a series that was removed; resolve its labels again
└── BadMatcherError       a label matcher has an invalid regular expression

A refused sample is not an exception: it is counted in `Appended` and in `Store.stats()`.
"""

from __future__ import annotations

import sqlite3


class StoreError(Exception):
    """Base class of the store's exceptions."""


class StoreLockedError(StoreError):
    """Another process has this data folder open for writing."""


class StoreFullError(StoreError):
    """The disk is full or cannot be written; the tick was not stored."""


class StoreDamagedError(StoreError):
    """The file cannot be read as a database."""


class StoreTooNewError(StoreError):
    """The file's schema is newer than this version of gpuscope."""


class StoreClosedError(StoreError):
    """The store is closed or read-only."""


class UnknownSeriesError(StoreError):
    """A tick contains a series id that does not exist (any more)."""


class BadMatcherError(StoreError, ValueError):
    """A label matcher has an invalid regular expression."""


_FULL_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


def is_damage(error: BaseException) -> bool:
    """Return whether an exception means that the file is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, StoreDamagedError) or (code is not None and (code & 0xFF) in _DAMAGED_CODES):
        return True
    # The sqlite3 module's message for text that is not UTF-8, without an error code; the store writes only
    # UTF-8.
    return isinstance(error, sqlite3.OperationalError) and "Could not decode to UTF-8" in str(error)


def from_sqlite(error: sqlite3.Error) -> StoreError:
    """Convert an SQLite exception; the low byte of an extended error code is its primary code."""
    code = getattr(error, "sqlite_errorcode", None)
    family = None if code is None else code & 0xFF
    if is_damage(error):
        return StoreDamagedError(f"the store's file is damaged: {error}")
    if family in _FULL_CODES:
        return StoreFullError(f"the store cannot write: {error}")
    return StoreError(f"the store failed: {error}")
