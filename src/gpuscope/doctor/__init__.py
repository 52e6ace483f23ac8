"""Why a number is missing: checks of this machine, each with what it means and the command that mends it.

Every module here has `CHECKS`, functions from a `Scene` to findings; a check that itself fails is a finding
too, and never stops the others.
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
class Diagnosis:
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


Check = Callable[[Scene], Iterable[Diagnosis]]


def examine(scene: Scene) -> Iterator[Diagnosis]:
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        checks: tuple[Check, ...] = importlib.import_module(f"{__name__}.{module.name}").CHECKS
        for check in checks:
            try:
                yield from check(scene)
            except Exception as error:
                yield Diagnosis(Verdict.NOTE, f"could not check {check.__name__.replace('_', ' ')}: {error}")
