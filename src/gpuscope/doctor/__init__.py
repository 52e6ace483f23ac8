"""Why a number is missing: checks of this machine, each with what it means and the command that fixes it.

Each module here has `CHECKS`, functions from a `Scene` to findings, and may name those that look at the driver,
its devices or their processes in `REAL_GPU_CHECKS`: they are skipped when the GPUs are simulated. A check that
fails is itself a finding and does not stop the others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gpuscope.readings import Snapshot
from gpuscope.settings import Settings


class Verdict(Enum):
    GOOD = "ok"
    NOTE = "note"  # worth knowing, nothing to mend
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    what: str
    fix: str = ""  # the command or change that mends it


@dataclass(frozen=True, slots=True)
class Scene:
    """What the checks look at; the paths are settable so that a test can show them another machine."""

    settings: Settings
    snapshot: Snapshot
    root: Path = Path("/")
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        return self.settings.source == "demo"


Check = Callable[[Scene], Iterable[Finding]]


def examine(scene: Scene) -> Iterator[Finding]:
    if scene.is_simulated:
        yield Finding(Verdict.NOTE, "the GPUs are simulated: the driver and its devices are not checked")
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        checks: tuple[Check, ...] = loaded.CHECKS
        skipped: tuple[Check, ...] = getattr(loaded, "REAL_GPU_CHECKS", ()) if scene.is_simulated else ()
        for check in checks:
            if check in skipped:
                continue
            try:
                yield from check(scene)
            except Exception as error:
                yield Finding(Verdict.NOTE, f"could not check {check.__name__.replace('_', ' ')}: {error}")
