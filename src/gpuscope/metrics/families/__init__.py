"""How readings are named: each module here is one metric family set (`--families a,b`), and has a `FAMILY`.

A builder turns a snapshot into metric families. It may keep state of its own (a window of XIDs, a sticky
value); one builder serves one listener. Modules are imported only when their family is served.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from gpuscope.errors import UsageError
from gpuscope.metrics.sample import MetricFamily
from gpuscope.readings import Snapshot
from gpuscope.settings import Settings


class Builder(Protocol):
    def to_families(self, snapshot: Snapshot) -> Iterable[MetricFamily]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    name: str
    summary: str
    build: Callable[[Settings], Builder]
    openmetrics: bool = False  # compat families answer text 0.0.4 only: OpenMetrics would rename their counters


def family_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_family(name: str) -> FamilySpec:
    if name not in family_names():
        raise UsageError(f"unknown metric family {name!r}; there are {', '.join(family_names())}")
    spec: FamilySpec = importlib.import_module(f"gpuscope.metrics.families.{name}").FAMILY
    return spec
