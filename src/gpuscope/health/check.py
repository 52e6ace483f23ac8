"""One row of judgement: a kind of finding, its live predicate, its PromQL form, and the next step.

The live form and the PromQL form of a row must agree; tests/health/test_forms_agree.py runs both over the
same random fleets. A row that has only one form says why in `one_form_because`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuscope.health.facts import Facts, FleetFacts
from gpuscope.readings import ABSENT, Maybe


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Subject(StrEnum):
    """What a check is about, and by which labels its series identify it."""

    NODE = "node"
    GPU = "gpu"
    PROCESS = "process"
    OWNER = "owner"
    SERVICE = "service"


Live = Callable[[Any, float], bool]
"""Takes the facts of the subject and the time; true if the condition holds."""
GpuKey = tuple[str, str]
"""Instance and UUID."""
LiveOverFleet = Callable[[FleetFacts, float], set[GpuKey]]
"""For a condition that compares GPUs of several nodes: the GPUs for which it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    kind: str
    """Stable: scripts and text keys rely on it."""
    alert: str
    """The name of its alert rule."""
    subject: Subject
    severity: Severity
    promql: str
    live: Live | None = None
    live_fleet: LiveOverFleet | None = None
    """Instead of `live`."""
    one_form_because: str = ""
    alert_promql: str = ""
    """What its alert rule evaluates, where that is not `promql`."""
    for_seconds: float = 0.0
    """How long it must last before it becomes an alert."""
    inhibited_by: tuple[str, ...] = ()
    """Kinds that explain this one: it is left out while one of them holds for the same GPU or node."""
    meaning: str
    next_step: str


def metric_names(check: Check) -> frozenset[str]:
    """The metrics of its PromQL form."""
    return frozenset(re.findall(r"\b(?:gpuscope|node)_\w+", check.promql))


def is_above(value: Maybe[float], limit: float) -> bool:
    """False for an ABSENT number: an unknown value never counts against a GPU."""
    return value is not ABSENT and value > limit


def is_below(value: Maybe[float], limit: float) -> bool:
    return value is not ABSENT and value < limit


def is_at(value: Maybe[float], wanted: float) -> bool:
    return value is not ABSENT and value == wanted


def flag(metric: str, value: int = 1) -> tuple[str, Live]:
    """Both forms of `metric == value`."""

    def live(facts: Facts, now: float) -> bool:
        return is_at(facts.number(metric), value)

    return f"{metric} == {value}", live
