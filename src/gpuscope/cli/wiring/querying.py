"""Builds the PromQL engine with the limits of the settings, and the answer of `status/flags`.

Settings that may contain a secret are not shown: a --remote-write URL can carry a password.
"""

from __future__ import annotations

from gpuscope.base.prometheus_duration import duration_text
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.login import address_text
from gpuscope.history.promql import Engine
from gpuscope.history.promql.budget import SamplePool
from gpuscope.history.store import Store


def build_engine(settings: Settings, store: Store) -> Engine:
    return Engine(
        store,
        lookback_ms=int(settings.query_lookback * 1000),
        max_samples=settings.query_max_samples,
        timeout_seconds=settings.query_timeout,
        max_label_bytes=settings.query_max_label_bytes,
        pool=SamplePool(settings.query_max_total_samples),
    )


def shown_flags(settings: Settings, listen: tuple[str, int]) -> dict[str, str]:
    """Settings by Prometheus' flag names, where it has one, and by ours."""
    size = settings.retention_bytes
    queries = {
        "max-samples": str(settings.query_max_samples),
        "timeout": _duration(settings.query_timeout),
        "lookback-delta": _duration(settings.query_lookback),
        "max-concurrency": str(settings.query_max_concurrency),
    }
    ours = {
        "data": settings.data,
        "listen": address_text(listen),
        "log-level": settings.log_level,
        "admin-api": str(settings.admin_api).lower(),
        "retention": _duration(settings.retention),
        "retention-bytes": "" if size is None else str(size),
        **{f"query-{name.removesuffix('-delta')}": value for name, value in queries.items()},
    }
    prometheus = {
        "config.file": settings.config,
        "log.level": {"warning": "warn"}.get(settings.log_level, settings.log_level),
        "storage.tsdb.path": settings.data,
        "storage.tsdb.retention.size": f"{size or 0}B",
        "storage.tsdb.retention.time": _duration(settings.retention),
        "web.config.file": settings.web_config_file,
        "web.enable-admin-api": str(settings.admin_api).lower(),
        "web.enable-lifecycle": "false",
        "web.enable-remote-write-receiver": "true",
        "web.listen-address": address_text(listen),
        **{f"query.{name}": value for name, value in queries.items()},
    }
    return {**prometheus, **ours}


def _duration(seconds: float) -> str:
    return duration_text(round(seconds * 1000))
