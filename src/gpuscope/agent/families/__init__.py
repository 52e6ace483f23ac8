"""Metric families: each folder here and in `vendors/*/families/` is one set of metrics (`--families a,b`).

Its `builder.py` defines `FAMILY`, its `table.py` the names, types and help of the metrics. A builder converts a
snapshot to metric families. It may keep state (a window of XIDs); each listener has its own builder. A folder
is imported only when its family is served.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from gpuscope.base.errors import UsageError
from gpuscope.base.plugins import Plugin, find_plugins
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.readings import Snapshot


class Builder(Protocol):
    def to_families(self, snapshot: Snapshot) -> Iterable[MetricFamily]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    name: str
    summary: str
    build: Callable[[Settings], Builder]
    openmetrics: bool = (
        False  # compat families support text 0.0.4 only: OpenMetrics would rename their counters
    )
    on_demand: bool = (
        False  # its builder needs no snapshot but those that are scraped: it counts nothing itself
    )


@cache
def _families() -> Mapping[str, Plugin]:
    return find_plugins(("agent/families/*/builder.py", "vendors/*/families/*/builder.py"))


def family_names() -> tuple[str, ...]:
    return tuple(sorted(_families()))


def load_family(name: str) -> FamilySpec:
    if name not in family_names():
        raise UsageError(f"--families: {name!r} is not one of {', '.join(family_names())}")
    spec: FamilySpec = importlib.import_module(f"{_families()[name].package}.builder").FAMILY
    return spec
