"""An embedded time-series store on SQLite: one data folder, one writing process."""

from gpuscope.history.store.options import MillisecondClock, StoreOptions, SystemMillisecondClock
from gpuscope.history.store.store import Store
from gpuscope.history.store.store_errors import (
    BadMatcherError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreTooNewError,
    UnknownSeriesError,
)
from gpuscope.history.store.tick import Appended, Tick

__all__ = [
    "Appended",
    "BadMatcherError",
    "MillisecondClock",
    "Store",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreOptions",
    "StoreTooNewError",
    "SystemMillisecondClock",
    "Tick",
    "UnknownSeriesError",
]
