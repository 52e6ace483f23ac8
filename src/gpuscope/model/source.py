"""Where numbers come from: what a source is, and how one is loaded.

A source is a package in `agent/sources/` or in a vendor's folder: `SOURCE` in its `__init__.py` says how it is
opened, `PLAN` in its `plan.py` says when it is used and which settings it has. A new source edits nothing
outside its package. The package is imported only when the source is used; its plan is read by every command
(`base/source_plan.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from gpuscope.base.settings import Settings
from gpuscope.base.source_plan import source_package
from gpuscope.model.readings import Reading, Snapshot


class Tier(Enum):
    """How often a number is read: at least this many seconds apart, and at most once a cycle."""

    FAST = 0  # every cycle: utilisation, memory, power, clocks, processes
    MEDIUM = 10  # PCIe and NVLink throughput, throttle counters, fans
    SLOW = 60  # ECC, remaps, modes, thresholds


class Source(Protocol):
    """Something that numbers are read from.

    `read` may raise `SourceError`; only the source's worker catches it, and closes and reopens the source.
    `NoAnswerYet` leaves it open. `read` is called by one thread at a time, with the tiers that are due. Numbers
    of other tiers are repeated from their last read; a call that fails makes its numbers absent, never old.
    """

    def read(self, due: frozenset[Tier]) -> Reading: ...

    def close(self) -> None: ...


@runtime_checkable
class Observer(Protocol):
    """A source that must know what the others read: the PIDs on the GPUs. Called before each `read`, in its
    thread, with the latest snapshot."""

    def observe(self, snapshot: Snapshot) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """How a source is opened and timed. `open` may raise SourceMissing: what is missing, and what to do."""

    name: str
    summary: str
    open: Callable[[Settings], Source]
    check: Callable[[Settings], None] = lambda settings: None  # raises UsageError for a wrong setting
    interval_seconds: Callable[[Settings], float] = lambda settings: settings.interval
    deadline_seconds: Callable[[Settings], float] = lambda settings: max(5.0, 3 * settings.interval)


def load_source(name: str) -> SourceSpec:
    """`name` as users type it."""
    module = importlib.import_module(source_package(name))
    spec: SourceSpec = module.SOURCE
    return spec
