"""Runs a case of the corpus through gpuscope's templates, or through the Go program that has the originals."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuscope.judge.rules.templates import (
    ALERT_PRELUDE,
    AlertList,
    FunctionFailed,
    GoTime,
    KeyValues,
    NotificationData,
    Template,
    TemplateAlert,
    TemplateError,
    alert_data,
    alertmanager_functions,
    parse,
    prometheus_functions,
)
from tests.clients.go_client import client

HERE = Path(__file__).parent
Result = dict[str, str]


def notification_data(document: Mapping[str, Any]) -> NotificationData:
    def alert(one: Mapping[str, Any]) -> TemplateAlert:
        return TemplateAlert(
            one["status"],
            KeyValues(one["labels"]),
            KeyValues(one["annotations"]),
            GoTime.from_datetime(datetime.fromisoformat(one["startsAt"])),
            GoTime.from_datetime(datetime.fromisoformat(one["endsAt"])),
            one["generatorURL"],
            one["fingerprint"],
        )

    return NotificationData(
        receiver=document["receiver"],
        status=document["status"],
        alerts=AlertList(map(alert, document["alerts"])),
        notification_reason=document["notification_reason"],
        group_labels=KeyValues(document["groupLabels"]),
        common_labels=KeyValues(document["commonLabels"]),
        common_annotations=KeyValues(document["commonAnnotations"]),
        route_labels=KeyValues(document["routeLabels"]),
        external_url=document["externalURL"],
    )


def expand(case: Mapping[str, Any]) -> Result:
    try:
        text = _expand_alert(case) if case["engine"] == "prometheus" else _expand_notification(case)
    except TemplateError as error:
        return {"output": "", "error": error.message}
    return {"output": text, "error": ""}


def _expand_alert(case: Mapping[str, Any]) -> str:
    def query(expression: str) -> Iterable[tuple[dict[str, str], float]]:
        if expression not in case["queries"]:
            raise FunctionFailed("no such query")
        return [(one["labels"], float(one["value"])) for one in case["queries"][expression]]

    url = case["external_url"]
    functions = prometheus_functions(query, case["milliseconds"] / 1000, url)
    template = parse(ALERT_PRELUDE + case["template"], "__alert_Test", prometheus_functions())
    data = alert_data(case["labels"], float(case["value"]), case["external_labels"], url)
    return template.expand(data, functions)


@functools.cache
def default_templates() -> Template | None:
    """Alertmanager's own templates, from the module cache that the Go program was built from."""
    cache = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod"))
    folder = cache / "github.com/prometheus/alertmanager@v0.34.0/template"
    base = None
    for name in ("default.tmpl", "email.tmpl"):
        if (folder / name).exists():
            base = parse((folder / name).read_text(), "", alertmanager_functions(), base)
    return base


def _expand_notification(case: Mapping[str, Any]) -> str:
    data = notification_data(case["data"])
    functions = alertmanager_functions(route_label=lambda name: data.route_labels.get(name, ""))
    template = parse(case["template"], "", functions, default_templates())
    return template.expand_html(data) if case["engine"] == "html" else template.expand(data)


def expand_with_go(cases: list[dict[str, Any]]) -> list[Result]:
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    program = client("go_oracle", HERE)  # built as the other Go programs are, which have most of its packages
    run = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    # Only "\n" ends a line: the output may hold other line separators.
    return [json.loads(line) for line in run.stdout.split("\n") if line]
