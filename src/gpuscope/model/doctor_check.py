"""A check of this machine that explains a missing number, and its result: `gpuscope doctor`.

Checks of every machine are in `serve/doctor/`, those of a vendor's driver in its `doctor.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
