"""Grafana: eight dashboards made from the page's panels and those that only Grafana has, and its provisioning.

Input: a `GrafanaPlan`. Output: `dashboards/*.json`, and files for Grafana's `provisioning/` folder. The texts
of a language other than English are in `panel_texts/` (the page's panels) and in `dashboard_texts/` (all
others).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpuscope.serve.render import RenderedFile
from gpuscope.serve.render.grafana.dashboard_json import to_dashboard_json
from gpuscope.serve.render.grafana.dashboard_table import DASHBOARDS
from gpuscope.serve.render.grafana.dashboard_texts import ENGLISH, load_texts
from gpuscope.serve.render.ports import PROMETHEUS_PORT, SERVER_PORT

DASHBOARDS_FOLDER: Final = "dashboards"
DEFAULT_PAGE_URL: Final = f"http://localhost:{SERVER_PORT}"
DEFAULT_PROMETHEUS_URL: Final = f"http://localhost:{PROMETHEUS_PORT}"
DEFAULT_FOLDER: Final = "/etc/grafana/dashboards"
HEADER: Final = "# Written by `gpuscope render`.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrafanaPlan:
    language: str = ENGLISH
    page_url: str = DEFAULT_PAGE_URL
    """Where users reach gpuscope's page; empty: no links to it."""
    prometheus_url: str = DEFAULT_PROMETHEUS_URL
    """Prometheus, or a gpuscope server. Grafana replaces $VARIABLES with those of its environment."""
    dashboards_path: str = DEFAULT_FOLDER
    """The folder of the dashboards as Grafana sees it."""
    scrape_interval: str = "15s"


def grafana_files(plan: GrafanaPlan) -> list[RenderedFile]:
    return [*dashboard_files(plan), *provisioning_files(plan)]


def dashboard_files(plan: GrafanaPlan) -> list[RenderedFile]:
    texts = load_texts(plan.language)
    return [
        RenderedFile(
            f"{DASHBOARDS_FOLDER}/{dashboard.uid}.json",
            json.dumps(to_dashboard_json(dashboard, texts, plan.page_url), indent=1, ensure_ascii=False) + "\n",
        )
        for dashboard in DASHBOARDS
    ]


def provisioning_files(plan: GrafanaPlan) -> list[RenderedFile]:
    source = {
        "name": "Prometheus",
        "uid": "prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": plan.prometheus_url,
        "isDefault": True,
        # $__rate_interval is four times this; a wrong one leaves gaps in every chart.
        "jsonData": {"httpMethod": "POST", "timeInterval": plan.scrape_interval},
    }
    provider = {
        "name": "gpuscope",
        "type": "file",
        "folder": "gpuscope",
        "options": {"path": plan.dashboards_path},
    }
    return [
        _provisioning("datasources", {"datasources": [source]}),
        _provisioning("dashboards", {"providers": [provider]}),
    ]


def _provisioning(name: str, document: dict[str, Any]) -> RenderedFile:
    text: str = yaml.safe_dump({"apiVersion": 1, **document}, sort_keys=False)
    return RenderedFile(f"provisioning/{name}/gpuscope.yml", HEADER + text)
