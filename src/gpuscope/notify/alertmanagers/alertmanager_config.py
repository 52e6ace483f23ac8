"""The `alerting` section of prometheus.yml: which Alertmanagers exist, and how alerts are relabelled for them.

Input: the section as YAML gave it. Output: `AlertingSection`, with a warning for each key that Prometheus knows
and this program does not use. Alertmanagers come from `static_configs` and `file_sd_configs`; files are read
when the configuration is.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.config_values import ConfigMapping
from gpuscope.http_config import UNSUPPORTED as HTTP_UNSUPPORTED
from gpuscope.http_config import HttpConfig, read_http_config
from gpuscope.scrape.config import TargetGroup, glob_files, read_group, read_relabel_rules
from gpuscope.scrape.discovery import read_target_file
from gpuscope.scrape.provider_configs import SUPPORTED_KINDS, UNSUPPORTED_KINDS
from gpuscope.scrape.relabel import RelabelRule, relabel

DEFAULT_TIMEOUT_SECONDS = 10.0
_SD_KINDS = (*SUPPORTED_KINDS, *UNSUPPORTED_KINDS)
_UNSUPPORTED = (*HTTP_UNSUPPORTED, *(f"{kind}_sd_configs" for kind in _SD_KINDS), "sigv4")


@dataclass(frozen=True, slots=True)
class AlertmanagerGroup:
    """One entry of `alertmanagers`."""

    urls: tuple[str, ...]
    """Where alerts are posted."""
    dropped_urls: tuple[str, ...] = ()
    """Those that relabel_configs have dropped."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    http: HttpConfig = field(default_factory=HttpConfig)
    alert_relabel: tuple[RelabelRule, ...] = ()


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
    path = posixpath.join("/", table.text("path_prefix").strip("/"), "api/v2/alerts")
    targets = [
        *(read_group(entry) for entry in table.tables("static_configs")),
        *(group for entry in table.tables("file_sd_configs") for group in _from_files(entry)),
    ]
    kept, dropped = _relabelled(targets, read_relabel_rules(table, "relabel_configs"), scheme, path)
    group = AlertmanagerGroup(
        urls=tuple(dict.fromkeys(kept)),
        dropped_urls=tuple(dropped),
        timeout_seconds=table.duration("timeout", DEFAULT_TIMEOUT_SECONDS),
        http=read_http_config(table),
        alert_relabel=read_relabel_rules(table, "alert_relabel_configs"),
    )
    table.finish(_UNSUPPORTED, warnings.append)
    return group


def _from_files(entry: ConfigMapping) -> list[TargetGroup]:
    patterns = entry.strings("files")
    entry.duration("refresh_interval", 300.0)
    entry.finish((), lambda text: None)
    paths = [path for pattern in patterns for path in glob_files(str(entry.folder / pattern))]
    return [group for path in paths for group in read_target_file(path)]


def _relabelled(
    groups: Iterable[TargetGroup], rules: tuple[RelabelRule, ...], scheme: str, path: str
) -> tuple[list[str], list[str]]:
    """URLs that relabelling keeps, and URLs that it drops."""
    kept: list[str] = []
    dropped: list[str] = []
    for group in groups:
        for address in group.targets:
            labels = {
                **group.labels, "__address__": address, "__scheme__": scheme, "__alerts_path__": path
            }  # fmt: skip
            changed = relabel(labels, rules)
            if changed is None:
                dropped.append(_url(labels))
            elif changed.get("__address__"):
                kept.append(_url(changed))
    return kept, dropped


def _url(labels: dict[str, str]) -> str:
    path = labels.get("__alerts_path__", "")
    return f"{labels.get('__scheme__', 'http')}://{labels['__address__']}/{path.lstrip('/')}"
