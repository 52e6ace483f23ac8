"""Samples kept: an embedded time-series store on SQLite, one folder, one writing process."""

from gpuscope.store.options import Clock, StoreOptions, SystemClock
from gpuscope.store.store import Store
from gpuscope.store.store_errors import (
    BadMatcherError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreTooNewError,
    UnknownSeriesError,
)
from gpuscope.store.tick import Appended, Tick

__all__ = [
    "Appended",
    "BadMatcherError",
    "Clock",
    "Store",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreOptions",
    "StoreTooNewError",
    "SystemClock",
    "Tick",
    "UnknownSeriesError",
]
