"""A panel as Grafana's JSON: its type, unit, colours, queries, table columns and links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any, Final

from gpuscope.serve.render.grafana.dashboard_table import (
    BARS,
    INSTANT_KINDS,
    LEVELS,
    LINES,
    SPANS,
    STAT,
    STATES,
    TABLE,
    DashboardPanel,
    DashboardQuery,
)
from gpuscope.serve.render.grafana.dashboard_texts import DashboardTexts

Json = dict[str, Any]

DATASOURCE: Final = MappingProxyType({"type": "prometheus", "uid": "${datasource}"})
PANEL_TYPES: Final = MappingProxyType(
    {
        LINES: "timeseries",
        SPANS: "timeseries",
        LEVELS: "status-history",
        STATES: "state-timeline",
        STAT: "stat",
        BARS: "bargauge",
        TABLE: "table",
    }
)
UNITS: Final = MappingProxyType(
    {
        "ratio": "percentunit",
        "bytes": "bytes",
        "bytes_per_second": "binBps",
        "watts": "watt",
        "celsius": "celsius",
        "hertz": "hertz",
        "seconds": "s",
        "hours": "h",
        "kilowatt_hours": "kwatth",
        "count": "short",
        "moment": "dateTimeAsIso",
        "up": "short",
    }
)
LIMIT_COLOURS: Final = MappingProxyType({"notice": "blue", "warning": "orange", "critical": "red"})
LABEL_COLUMNS: Final = ("Time", "__name__", "job")
DASHBOARD_LINK: Final = "/d/gpuscope-%s?var-datasource=${datasource}&var-instance=%s"
TIME_IN_LINK: Final = "&${__url_time_range}"


def to_panel_json(panel: DashboardPanel, number: int, place: Mapping[str, int], texts: DashboardTexts) -> Json:
    title, description = texts.panel(panel)
    return {
        "id": number,
        "type": PANEL_TYPES[panel.kind],
        "title": title,
        "description": description,
        "datasource": dict(DATASOURCE),
        "gridPos": dict(place),
        "targets": [
            _target(panel, query, ref) for query, ref in zip(panel.queries, ascii_uppercase, strict=False)
        ],
        "fieldConfig": {"defaults": _defaults(panel, texts), "overrides": list(_overrides(panel, texts))},
        "options": _options(panel),
        **({"transformations": _transformations(panel, texts)} if panel.kind == TABLE else {}),
    }


def _target(panel: DashboardPanel, query: DashboardQuery, ref: str) -> Json:
    is_instant = panel.kind in INSTANT_KINDS
    return {
        "refId": ref,
        "datasource": dict(DATASOURCE),
        "expr": query.expr,
        "editorMode": "code",
        "instant": is_instant,
        "range": not is_instant,
        **({"format": "table"} if panel.kind == TABLE else {"legendFormat": query.legend}),
    }


def _defaults(panel: DashboardPanel, texts: DashboardTexts) -> Json:
    defaults: Json = {"unit": _unit(panel), "color": {"mode": _colour_mode(panel)}, "custom": _custom(panel)}
    for name, value in (("min", panel.min), ("max", panel.max)):
        if value is not None:
            defaults[name] = value
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.is_alarm:
        steps.append({"color": "red", "value": 1})
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.unit == "up":
        defaults["mappings"] = [_mapping({"0": (texts.word("no"), "red"), "1": (texts.word("yes"), "green")})]
    elif panel.kind == STATES and panel.id.endswith("_throttle"):
        defaults["mappings"] = [_mapping({"0": (" ", "transparent"), "1": (texts.word("active"), "orange")})]
    if panel.link and panel.kind != TABLE:
        defaults["links"] = [_link(panel.link, "${__field.labels.%s}", texts)]
    return defaults


def _mapping(options: Mapping[str, tuple[str, str]]) -> Json:
    return {
        "type": "value",
        "options": {
            value: {"text": text, "color": colour, "index": int(value)}
            for value, (text, colour) in options.items()
        },
    }


def _unit(panel: DashboardPanel) -> str:
    return "prefix:P" if panel.id == "gpu_performance_state" else UNITS[panel.unit]


def _colour_mode(panel: DashboardPanel) -> str:
    if panel.kind in (LEVELS, BARS) or panel.id == "gpu_performance_state":
        return "continuous-BlPu"
    return "palette-classic" if panel.kind in (LINES, SPANS) else "thresholds"


def _custom(panel: DashboardPanel) -> Json:
    if panel.kind in (LINES, SPANS):
        is_stacked = panel.is_stacked or panel.kind == SPANS
        return {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1,
            "fillOpacity": 30 if is_stacked else 5,
            "showPoints": "never",
            # A gap is data: the number was not there.
            "spanNulls": False,
            "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        }
    if panel.kind in (LEVELS, STATES):
        return {"fillOpacity": 80, "lineWidth": 0}
    return {}


def _options(panel: DashboardPanel) -> Json:
    if panel.kind in (LINES, SPANS):
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == LEVELS:
        return {
            "showValue": "never",
            "rowHeight": 0.9,
            "legend": _hidden_legend(),
            "tooltip": _single_tooltip(),
        }
    if panel.kind == STATES:
        return {
            "showValue": "auto", "mergeValues": True, "rowHeight": 0.9,
            "legend": _hidden_legend(), "tooltip": _single_tooltip(),
        }  # fmt: skip
    reduce = {"values": False, "calcs": ["lastNotNull"], "fields": ""}
    if panel.kind == STAT:
        return {
            "reduceOptions": reduce, "colorMode": "value", "graphMode": "none",
            "textMode": "value_and_name", "justifyMode": "auto", "orientation": "auto",
        }  # fmt: skip
    if panel.kind == BARS:
        return {
            "reduceOptions": reduce, "displayMode": "gradient", "orientation": "horizontal",
            "showUnfilled": True, "valueMode": "color",
        }  # fmt: skip
    return {"showHeader": True, "cellHeight": "sm"}


def _hidden_legend() -> Json:
    return {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []}


def _single_tooltip() -> Json:
    return {"mode": "single", "sort": "none"}


def _overrides(panel: DashboardPanel, texts: DashboardTexts) -> Iterator[Json]:
    if panel.kind == TABLE:
        yield from _column_overrides(panel, texts)
        return
    for query, ref in zip(panel.queries, ascii_uppercase, strict=False):
        matcher = {"id": "byFrameRefID", "options": ref}
        if query.limit:
            yield {
                "matcher": matcher,
                "properties": [
                    {"id": "color", "value": {"mode": "fixed", "fixedColor": LIMIT_COLOURS[query.limit]}},
                    {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
                    {"id": "custom.fillOpacity", "value": 0},
                ],
            }
        elif panel.kind == SPANS and ref != ascii_uppercase[0]:
            # The second query of a panel of processes is the share of the SMs, not memory.
            yield {
                "matcher": matcher,
                "properties": [
                    {"id": "unit", "value": UNITS["ratio"]},
                    {"id": "custom.axisPlacement", "value": "right"},
                    {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
                    {"id": "custom.fillOpacity", "value": 0},
                ],
            }


def _column_overrides(panel: DashboardPanel, texts: DashboardTexts) -> Iterator[Json]:
    for query in panel.queries:
        properties: list[Json] = [{"id": "unit", "value": UNITS[query.unit]}]
        if query.unit == "up":
            options = {"0": (texts.word("no"), "text"), "1": (texts.word("yes"), "green")}
            properties.append({"id": "mappings", "value": [_mapping(options)]})
        if query.unit == "ratio":
            properties += [
                {"id": "custom.cellOptions", "value": {"type": "gauge", "mode": "basic"}},
                {"id": "min", "value": 0},
                {"id": "max", "value": 1},
            ]
        yield {"matcher": {"id": "byName", "options": texts.word(query.column)}, "properties": properties}
    if panel.link:
        link = _link(panel.link, '${__data.fields["%s"]}', texts)
        for name in ("instance", "gpu") if panel.link == "gpu" else ("instance",):
            yield {
                "matcher": {"id": "byName", "options": name},
                "properties": [{"id": "links", "value": [link]}],
            }


def _link(target: str, field: str, texts: DashboardTexts) -> Json:
    gpu = f"&var-uuid={field % 'uuid'}" if target == "gpu" else ""
    url = DASHBOARD_LINK % (target, field % "instance") + gpu + TIME_IN_LINK
    title = texts.word("Open the GPU") if target == "gpu" else texts.word("Open the node")
    return {"title": title, "url": url, "targetBlank": False}


def _transformations(panel: DashboardPanel, texts: DashboardTexts) -> list[Json]:
    """One row for each set of labels, one column for each query."""
    renamed: dict[str, str] = {}
    for query, ref in zip(panel.queries, ascii_uppercase, strict=False):
        # Grafana names the value `Value` with one query, `Value #A` with several.
        name = "Value" if len(panel.queries) == 1 else f"Value #{ref}"
        if query.column != "Value":
            renamed[name] = texts.word(query.column)
    hidden = dict.fromkeys([*LABEL_COLUMNS, *panel.hidden_columns], True)
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "indexByName": {}, "renameByName": renamed}},
    ]
