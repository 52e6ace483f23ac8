"""Sources of readings: the `Source` interface and how a source is found by name.

Every module or package in this folder is one source and defines `SOURCE`; adding a source edits nothing else. A
source is imported only when it is used, so that an agent on NVML never loads the DCGM or the demo code.
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
    """How often a number is read: the minimum interval in seconds, and at most once per cycle."""

    FAST = 0  # every cycle: utilisation, memory, power, clocks, processes
    MEDIUM = 10  # PCIe and NVLink throughput, throttle counters, fans
    SLOW = 60  # ECC, remaps, modes, thresholds


class Source(Protocol):
    """Reads GPUs, processes, the host or events.

    `read` may raise `SourceError`, which only the worker of the source catches; after `NoAnswerYet` the source
    stays open. `read` is called from one thread at a time with the tiers that are due. Numbers of other tiers
    are repeated from their last reading. A failed call makes its numbers absent, never old.
    """

    def read(self, due: frozenset[Tier]) -> Reading: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The description of a source. `open` may raise SourceMissing with the reason and the fix."""

    name: str
    summary: str
    open: Callable[[Settings], Source]
    check: Callable[[Settings], None] = lambda settings: None  # raises UsageError for a setting it cannot use
    interval_seconds: Callable[[Settings], float] = lambda settings: settings.interval
    deadline_seconds: Callable[[Settings], float] = lambda settings: max(5.0, 3 * settings.interval)


def source_names() -> tuple[str, ...]:
    """The sources of this folder under their command-line names: `nvidia_smi` is `nvidia-smi`."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_source(name: str) -> SourceSpec:
    module = importlib.import_module("gpuscope.sources." + name.replace("-", "_"))
    spec: SourceSpec = module.SOURCE
    return spec
