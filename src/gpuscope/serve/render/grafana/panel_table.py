"""The panels of the dashboards: those of the page (`panels.json`) and those that only Grafana has.

A panel of the page that names `$uuids`, the GPUs of a node, selects them by `$instance` here. The step and the
time range are Grafana's own variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

PAGE_PANELS: Final = Path(__file__).parents[1] / "panels.json"
GRAFANA_PANELS: Final = Path(__file__).parent / "grafana_panels.json"

TABLE, STAT, BARS, LINES, LEVELS, STATES = "table", "stat", "bars", "lines", "levels", "states"
EVENTS, SPANS = "events", "spans"
INSTANT_KINDS: Final = (TABLE, STAT, BARS)

_REPLACED: Final = (
    ('uuid=~"$uuids"', 'instance=~"$instance"'),
    ("$window", "$__rate_interval"),
    ("$rate", "$__rate_interval"),
    ("$range", "$__range"),
)


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    expr: str
    legend: str = ""
    column: str = ""
    """Of a table: the name of the value's column."""
    unit: str = ""
    limit: str = ""
    """notice, warning or critical: a border, drawn dashed."""


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    id: str
    kind: str
    title: str
    help: str
    unit: str
    queries: tuple[DashboardQuery, ...]
    min: float | None = None
    max: float | None = None
    link: str = ""
    """`gpu` or `node`: the dashboard that a line or a row opens."""
    is_stacked: bool = False
    is_alarm: bool = False
    """Anything above 0 is red."""
    hidden_columns: tuple[str, ...] = ()


@cache
def load_panels() -> Mapping[str, DashboardPanel]:
    rows = [*_read(PAGE_PANELS), *_read(GRAFANA_PANELS)]
    panels = [_panel(row) for row in rows]
    return {panel.id: panel for panel in panels}


def page_panels(scope: str) -> tuple[str, ...]:
    """The ids of the page's panels of a scope, in the page's order."""
    return tuple(str(row["id"]) for row in _read(PAGE_PANELS) if row["scope"] == scope)


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["panels"]
    return rows


def _panel(row: Mapping[str, Any]) -> DashboardPanel:
    is_events = row["kind"] == EVENTS
    return DashboardPanel(
        id=row["id"],
        kind=TABLE if is_events else row["kind"],
        title=row["title"],
        help=row["help"],
        unit=row["unit"],
        queries=tuple(_event_query(q) if is_events else _query(q) for q in row["queries"]),
        min=row.get("min"),
        max=row.get("max"),
        link=row.get("link", "gpu" if row.get("scope") == "node" else ""),
        is_stacked=row.get("stacked", False),
        is_alarm=row.get("alarm", False),
        hidden_columns=tuple(row.get("hide", ())),
    )


def _query(row: Mapping[str, Any]) -> DashboardQuery:
    return DashboardQuery(
        expr=_for_grafana(row["expr"]),
        legend=row.get("legend", ""),
        column=row.get("column", ""),
        unit=row.get("unit", ""),
        limit=row.get("limit", ""),
    )


def _event_query(row: Mapping[str, Any]) -> DashboardQuery:
    """Events are rows of a table that covers the whole time range; XIDs are annotations, too."""
    expr = _for_grafana(row["expr"].replace("$window", "$range").replace("$rate", "$range"))
    if row.get("value") == "timestamp":
        return DashboardQuery(f"{expr} * 1000", column="last", unit="moment")
    return DashboardQuery(expr, column="times", unit="count")


def _for_grafana(expr: str) -> str:
    for ours, theirs in _REPLACED:
        expr = expr.replace(ours, theirs)
    return expr
