"""Where numbers come from: what a source is, and how one is found.

Every module or package in this folder is one source and has a `SOURCE`; nothing else is edited to add one.
It is imported only when it is used, so that an agent on NVML never loads the DCGM or the demo code.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gpuscope.readings import Reading
from gpuscope.settings import Settings


class Tier(Enum):
    """How often a number is read: at least these seconds apart, and never more than once a cycle."""

    FAST = 0  # every cycle: utilisation, memory, power, clocks, processes
    MEDIUM = 10  # PCIe and NVLink throughput, throttle counters, fans
    SLOW = 60  # ECC, remaps, modes, thresholds


class Source(Protocol):
    """Somewhere numbers come from.

    `read` may raise `SourceError`; only its runner catches. `NoAnswerYet` leaves the source open. It is called
    from one thread at a time, with the tiers that are due; numbers of other tiers are repeated from their last
    reading, and a tier's failed call makes its numbers absent, never old.
    """

    def read(self, due: frozenset[Tier]) -> Reading: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """How a source presents itself. `open` may raise SourceMissing: what is not here, and what to do."""

    name: str
    summary: str
    open: Callable[[Settings], Source]
    check: Callable[[Settings], None] = lambda settings: None  # raises UsageError for a setting it cannot use
    interval_seconds: Callable[[Settings], float] = lambda settings: settings.interval
    deadline_seconds: Callable[[Settings], float] = lambda settings: max(5.0, 3 * settings.interval)


def source_names() -> tuple[str, ...]:
    """The modules of this folder by the names users type: `nvidia_smi.py` is `nvidia-smi`."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_source(name: str) -> SourceSpec:
    module = importlib.import_module("gpuscope.sources." + name.replace("-", "_"))
    spec: SourceSpec = module.SOURCE
    return spec
