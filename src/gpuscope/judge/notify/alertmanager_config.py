"""The `alerting` section of prometheus.yml: where Alertmanagers are, and how alerts are relabelled for them.

Input: the section as YAML gave it. Output: `AlertingSection`, with a warning for each key that Prometheus knows
and this program does not use. A kind of discovery that is not supported is an error, because without its
Alertmanagers no alert would leave.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import UNUSED, HttpConfig, read_sender_config
from gpuscope.history.scrape.config import TargetGroup, read_file_patterns, read_group, read_relabel_rules
from gpuscope.history.scrape.job_options import (
    SUPPORTED_KINDS,
    UNSUPPORTED_KINDS,
    ProviderConfig,
    read_providers,
)
from gpuscope.history.scrape.relabel import RelabelRule, relabel

DEFAULT_TIMEOUT_SECONDS = 10.0
_UNUSED = (*UNUSED, "sigv4")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerGroup:
    """One entry of `alertmanagers`."""

    name: str = field(default="", compare=False)  # its place in the file
    scheme: str = "http"
    path: str = "/api/v2/alerts"
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    http: HttpConfig = field(default_factory=HttpConfig)
    static: tuple[TargetGroup, ...] = ()
    files: tuple[str, ...] = ()
    """Absolute glob patterns of file_sd files."""
    providers: tuple[ProviderConfig, ...] = ()
    relabel: tuple[RelabelRule, ...] = ()
    alert_relabel: tuple[RelabelRule, ...] = ()

    @property
    def is_static(self) -> bool:
        return not (self.files or self.providers)

    def urls_of(self, targets: Iterable[TargetGroup]) -> tuple[list[str], list[str]]:
        """Where alerts are posted, and the URLs that relabel_configs have dropped."""
        kept: dict[str, None] = {}
        dropped: dict[str, None] = {}
        for group in targets:
            for address in group.targets:
                labels = {
                    **group.labels,
                    "__address__": address,
                    "__scheme__": self.scheme,
                    "__alerts_path__": self.path,
                }
                changed = relabel(labels, self.relabel)
                if changed is None:
                    dropped[_url(labels)] = None
                elif changed.get("__address__"):
                    kept[_url(changed)] = None
        return list(kept), list(dropped)


@dataclass(frozen=True, slots=True)
class AlertingSection:
    alertmanagers: tuple[AlertmanagerGroup, ...] = ()
    alert_relabel: tuple[RelabelRule, ...] = ()
    warnings: tuple[str, ...] = ()


def read_alerting(section: object, name: str, folder: Path) -> AlertingSection:
    """`name` and `folder` are those of the configuration file. Raises UsageError."""
    warnings: list[str] = []
    table = ConfigMapping(section, f"{name}: alerting", folder)
    relabel_rules = read_relabel_rules(table, "alert_relabel_configs")
    groups = tuple(_read_group(entry, warnings) for entry in table.tables("alertmanagers"))
    table.finish((), warnings.append)
    return AlertingSection(groups, relabel_rules, tuple(warnings))


def _read_group(table: ConfigMapping, warnings: list[str]) -> AlertmanagerGroup:
    scheme = table.one_of("scheme", "http", ("http", "https"))
    version = table.one_of("api_version", "v2", ("v1", "v2"))
    if version == "v1":
        table.fail("api_version", "Alertmanager 0.27 has removed the API v1; use v2")
    for kind in UNSUPPORTED_KINDS:
        if table.has(f"{kind}_sd_configs"):
            supported = ", ".join(f"{kind}_sd_configs" for kind in ("file", *SUPPORTED_KINDS))
            table.fail(f"{kind}_sd_configs", f"is not supported; use static_configs, {supported}")
    files, _ = read_file_patterns(table)
    group = AlertmanagerGroup(
        name=table.location,
        scheme=scheme,
        path=posixpath.join("/", table.text("path_prefix").strip("/"), "api/v2/alerts"),
        timeout_seconds=table.duration("timeout", DEFAULT_TIMEOUT_SECONDS),
        http=read_sender_config(table),
        static=tuple(read_group(entry) for entry in table.tables("static_configs")),
        files=files,
        providers=read_providers(table, warnings),
        relabel=read_relabel_rules(table, "relabel_configs"),
        alert_relabel=read_relabel_rules(table, "alert_relabel_configs"),
    )
    table.finish(_UNUSED, warnings.append)
    return group


def _url(labels: dict[str, str]) -> str:
    path = labels.get("__alerts_path__", "")
    return f"{labels.get('__scheme__', 'http')}://{labels['__address__']}/{path.lstrip('/')}"
