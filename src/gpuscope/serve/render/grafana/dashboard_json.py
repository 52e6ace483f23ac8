"""A dashboard as Grafana's JSON: variables, annotations, links, and panels on a grid of 24 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from gpuscope.serve.render.grafana.dashboard_table import (
    BARS,
    DASHBOARDS,
    LEVELS,
    LINES,
    SPANS,
    STAT,
    STATES,
    TABLE,
    TIME_ON_PAGE,
    UID_PREFIX,
    VARIABLES,
    Dashboard,
    DashboardPanel,
    DashboardVariable,
    load_panels,
)
from gpuscope.serve.render.grafana.dashboard_texts import DashboardTexts
from gpuscope.serve.render.grafana.panel_json import DATASOURCE, to_panel_json

Json = dict[str, Any]

SCHEMA_VERSION: Final = 41
TAG: Final = "gpuscope"
GRID_COLUMNS: Final = 24
ALL: Final = "$__all"
SIZES: Final = MappingProxyType(
    {
        STAT: (8, 5),
        BARS: (12, 8),
        LINES: (12, 8),
        SPANS: (24, 9),
        LEVELS: (24, 9),
        STATES: (12, 8),
        TABLE: (24, 9),
    }
)
"""Columns and rows of the grid by kind of panel."""
SMALL_STATS: Final = 4
"""Columns of each figure in a row that has many of them."""
XID_STEP: Final = "60s"


def to_dashboard_json(dashboard: Dashboard, texts: DashboardTexts, page_url: str) -> Json:
    title, description = texts.dashboard(dashboard)
    return {
        "uid": dashboard.uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": dashboard.default_time, "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables(dashboard, texts, page_url))},
        "annotations": {"list": _annotations(dashboard, texts)},
        "links": list(_links(dashboard, texts, page_url)),
        "panels": list(_panels(dashboard, texts)),
    }


def _variables(dashboard: Dashboard, texts: DashboardTexts, page_url: str) -> Iterator[Json]:
    yield {
        "type": "datasource",
        "name": "datasource",
        "label": texts.word("Data source"),
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
        "options": [],
    }
    if page_url:
        yield {"type": "constant", "name": "page_url", "query": page_url.rstrip("/"), "hide": 2}
    for name in dashboard.variables:
        yield _variable(VARIABLES[name], texts)


def _variable(variable: DashboardVariable, texts: DashboardTexts) -> Json:
    common = {
        "name": variable.name,
        "label": texts.word(variable.label),
        "hide": 2 if variable.is_hidden else 0,
        "multi": variable.is_multiple,
        "includeAll": variable.is_multiple,
    }
    if variable.choices:
        first, *_ = variable.choices
        options = [
            {"text": choice, "value": choice, "selected": choice == first} for choice in variable.choices
        ]
        query = ",".join(variable.choices)
        current = {"text": first, "value": first}
        return {"type": "custom", **common, "query": query, "current": current, "options": options}
    document: Json = {
        "type": "query",
        **common,
        "datasource": dict(DATASOURCE),
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "regex": variable.regex,
        "refresh": 2,
        "sort": 7,
        "options": [],
    }
    if variable.is_multiple:
        document |= {"allValue": ".*", "current": {"text": [texts.word("All")], "value": [ALL]}}
    return document


def _annotations(dashboard: Dashboard, texts: DashboardTexts) -> list[Json]:
    """XIDs at the time at which they happened, and alerts while they fire."""
    selector = dashboard.selector
    alerts = f'ALERTS{{alertstate="firing",alertname!="Watchdog",{selector}}}'
    # Slurm's dashboard has no node to choose; its jobs run on all of them.
    xids = (
        f"gpuscope_gpu_xid_last_timestamp_seconds{{{selector}}}"
        if "alertname" not in selector
        else ("gpuscope_gpu_xid_last_timestamp_seconds")
    )
    return [
        {
            "name": texts.word("XIDs"),
            "enable": True,
            "hide": False,
            "iconColor": "red",
            "datasource": dict(DATASOURCE),
            "expr": f"{xids} * 1000",
            "step": XID_STEP,
            "titleFormat": "XID {{xid}}",
            "textFormat": "{{instance}} GPU {{gpu}}",
            "tagKeys": "xid,instance,gpu",
            "useValueForTime": True,
        },
        {
            "name": texts.word("Alerts"),
            "enable": True,
            "hide": False,
            "iconColor": "orange",
            "datasource": dict(DATASOURCE),
            "expr": alerts,
            "step": XID_STEP,
            "titleFormat": "{{alertname}}",
            "textFormat": "{{instance}} {{gpu}} {{severity}}",
            "tagKeys": "severity,instance",
            "useValueForTime": False,
        },
    ]


def _links(dashboard: Dashboard, texts: DashboardTexts, page_url: str) -> Iterator[Json]:
    common = {"icon": "external link", "tooltip": "", "targetBlank": False, "asDropdown": False, "tags": []}
    if page_url:
        yield {
            **common,
            "type": "link",
            "title": texts.word("Page of gpuscope"),
            "url": "${page_url}" + dashboard.page_path + TIME_ON_PAGE,
            "includeVars": False,
            "keepTime": False,
            "targetBlank": True,
        }
    for other in DASHBOARDS:
        if other is not dashboard:
            yield {
                **common,
                "type": "link",
                "title": texts.short_title(other),
                "url": f"/d/{UID_PREFIX}{other.name}",
                "includeVars": True,
                "keepTime": True,
                "icon": "dashboard",
            }


def _panels(dashboard: Dashboard, texts: DashboardTexts) -> Iterator[Json]:
    known, number, top = load_panels(), 0, 0
    for row in dashboard.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": texts.word(row.title),
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": GRID_COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        panels = [known[name] for name in row.panels]
        for panel, place in _places(panels, top):
            number += 1
            yield to_panel_json(panel, number, place, texts)
            top = max(top, place["y"] + place["h"])


def _places(panels: list[DashboardPanel], top: int) -> Iterator[tuple[DashboardPanel, Mapping[str, int]]]:
    """From left to right; a panel that does not fit begins a new line below the highest one of the last."""
    stats = sum(panel.kind == STAT for panel in panels)
    left, height = 0, 0
    for panel in panels:
        width, rows = SIZES[panel.kind]
        if panel.kind == STAT and stats * width > GRID_COLUMNS:
            width = SMALL_STATS
        if left + width > GRID_COLUMNS:
            left, top, height = 0, top + height, 0
        yield panel, {"x": left, "y": top, "w": width, "h": rows}
        left, height = left + width, max(height, rows)
