"""Scrape a fleet, keep its history and answer Prometheus' API; or answer over an engine that keeps it already.

Targets come from Prometheus' own configuration file (SIGHUP reads it again) or simply from --targets. Other
Prometheus servers and agents may send to /api/v1/write.
"""

from __future__ import annotations

import argparse

from gpuscope.cli import ALERT_SETTINGS, HISTORY_SETTINGS, WEB_SETTINGS
from gpuscope.limits import limit_names
from gpuscope.settings import Settings

SETTINGS = (
    "config", "targets", "scrape_interval", "store", "store_tenant", "store_http_config", "listen",
    *HISTORY_SETTINGS, "remote_write", "remote_write_http_config", *WEB_SETTINGS, *limit_names("scrape"),
    *ALERT_SETTINGS,
)  # fmt: skip

COMMON = ("targets", "config", "store", "listen", "data", "retention")

EPILOG = """examples:
  gpuscope server --targets node1:9400,node2:9400      scrape two agents, keep 30 days
  gpuscope server --config prometheus.yml              the same file as for Prometheus
  gpuscope server --store http://prometheus:9090       page and API over an engine that has the data
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All of it are settings."""


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.wiring.run_server import run_server

    run_server(settings)
    return 0
