"""Builds HTTP servers with the limits of the settings and the TLS of the web configuration file.

Separate from `serving`, because the agent has listeners but no store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuscope.base.limits import Limits
from gpuscope.base.settings import Settings
from gpuscope.serve.http.connection_limits import Network, fit_to_files, raise_file_limit
from gpuscope.serve.http.messages import Handler
from gpuscope.serve.http.server import Server
from gpuscope.serve.web_config import WebConfig

log = logging.getLogger("gpuscope")


def build_server(app: Handler, config: WebConfig, limits: Limits, proxies: Sequence[Network] = ()) -> Server:
    tls = config.tls
    return Server(
        config.wrap(app),
        tls=tls.context if tls else None,
        limits=limits,
        proxies=proxies,
        accepts_peer=tls.accepts_peer if tls else None,
    )


def fit_limits(settings: Settings, listeners: int = 1) -> Settings:
    """The settings, with `max_connections` lowered if this process may open too few files; logged once."""
    raise_file_limit()
    fitted = fit_to_files(settings, listeners)
    if fitted.max_connections < settings.max_connections:
        log.warning(
            "the limit of open files is too low for %d connections; each listener takes %d (raise ulimit -n)",
            settings.max_connections,
            fitted.max_connections,
        )
    return fitted
