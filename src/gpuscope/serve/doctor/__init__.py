"""Checks of this machine that explain missing numbers, each with the command that fixes the problem.

Every module has `CHECKS`, functions that take a `DoctorContext` and return results. Those that look at the
driver, its devices or their processes are also in `REAL_GPU_CHECKS`: they are skipped for simulated GPUs. A
check that raises becomes a result and does not stop the others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gpuscope.base.settings import Settings
from gpuscope.model.readings import Snapshot


class Verdict(Enum):
    GOOD = "ok"
    NOTE = "note"  # useful to know, not a problem
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    verdict: Verdict
    what: str
    fix: str = ""  # the command or change that fixes it


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """The input of the checks; a test sets `root` to simulate another machine."""

    settings: Settings
    snapshot: Snapshot
    root: Path = Path("/")
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        return self.settings.source == "demo"


Check = Callable[[DoctorContext], Iterable[CheckResult]]


def examine(context: DoctorContext) -> Iterator[CheckResult]:
    if context.is_simulated:
        yield CheckResult(Verdict.NOTE, "the GPUs are simulated: the driver and its devices are not checked")
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        checks: tuple[Check, ...] = loaded.CHECKS
        skipped: tuple[Check, ...] = getattr(loaded, "REAL_GPU_CHECKS", ()) if context.is_simulated else ()
        for check in checks:
            if check in skipped:
                continue
            try:
                yield from check(context)
            except Exception as error:
                yield CheckResult(Verdict.NOTE, f"could not check {check.__name__.replace('_', ' ')}: {error}")
