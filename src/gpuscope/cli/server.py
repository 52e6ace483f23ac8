"""Scrape a fleet, store its history, serve the Prometheus API and the web page; or serve another engine's data.

Targets come from a Prometheus configuration file (SIGHUP reloads it) or from --targets. Prometheus servers and
agents can also send samples to /api/v1/write.
"""

from __future__ import annotations

import argparse

from gpuscope.base.limits import limit_names
from gpuscope.base.settings import Settings
from gpuscope.cli import ALERT_SETTINGS, HISTORY_SETTINGS, WEB_SETTINGS

SETTINGS = (
    "config", "targets", "scrape_interval", "store", "store_tenant", "store_http_config", "listen",
    *HISTORY_SETTINGS, "remote_write", "remote_write_http_config", *WEB_SETTINGS,
    *limit_names("scrape"), *ALERT_SETTINGS,
)  # fmt: skip

COMMON = ("targets", "config", "store", "listen", "data", "retention")

EPILOG = """examples:
  gpuscope server --targets node1:9400,node2:9400      scrape two agents, keep 30 days of history
  gpuscope server --config prometheus.yml              use a Prometheus configuration file
  gpuscope server --store http://prometheus:9090       web page and API over the data of a Prometheus
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has only settings."""


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.cli.wiring.heap import paused_while_starting

    with paused_while_starting():
        from gpuscope.cli.wiring.run_server import run_server

        run_server(settings)
    return 0
