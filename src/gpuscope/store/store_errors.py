"""What can go wrong in the store, as one tree.

StoreError
├── StoreLockedError      another process has the folder
├── StoreFullError        the disk is full; nothing was kept, try again later
├── StoreDamagedError     the file cannot be read as a database
├── StoreTooNewError      the file was written by a newer version
├── StoreClosedError      the store was closed, or opened for reading only
├── UnknownSeriesError    a tick names a series that was removed; resolve its labels again
└── BadMatcherError       a label condition that cannot be compiled

A refused sample is not an error: it is counted in `Appended` and in `Store.stats()`.
"""

from __future__ import annotations

import sqlite3


class StoreError(Exception):
    """Anything the store cannot do."""


class StoreLockedError(StoreError):
    """Another process has this data folder open for writing."""


class StoreFullError(StoreError):
    """The disk (or the allowed size) is exhausted; the tick was not kept."""


class StoreDamagedError(StoreError):
    """The file is not readable as a database."""


class StoreTooNewError(StoreError):
    """The file's schema is newer than this program."""


class StoreClosedError(StoreError):
    """Writing to a store that is closed or read-only."""


class UnknownSeriesError(StoreError):
    """A tick names a series id that does not exist (any more)."""


class BadMatcherError(StoreError, ValueError):
    """A label condition with an invalid regular expression."""


_FULL_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


def is_damage(error: BaseException) -> bool:
    """Whether an exception means the file itself is broken."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, StoreDamagedError) or (code is not None and (code & 0xFF) in _DAMAGED_CODES):
        return True
    # Python's own words for a text that is not UTF-8, with no code: we never write one.
    return isinstance(error, sqlite3.OperationalError) and "Could not decode to UTF-8" in str(error)


def from_sqlite(error: sqlite3.Error) -> StoreError:
    """The store's own exception for an SQLite one; extended codes carry the family in the low byte."""
    code = getattr(error, "sqlite_errorcode", None)
    family = None if code is None else code & 0xFF
    if is_damage(error):
        return StoreDamagedError(f"the store's file is damaged: {error}")
    if family in _FULL_CODES:
        return StoreFullError(f"the store could not write: {error}")
    return StoreError(f"the store failed: {error}")
