"""Reads a Prometheus configuration file into a `ScrapeConfig`.

Each unsupported key of Prometheus gives one warning; a mistake is one sentence with file, job and key. `rules`
reads the rule files and the alerting section. Limits that the file does not set have defaults here, because no
target may exhaust the server.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from gpuscope.base.config_values import ConfigMapping, load_yaml
from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import UNSUPPORTED as HTTP_UNSUPPORTED
from gpuscope.base.http_config import UNUSED as HTTP_UNUSED
from gpuscope.base.http_config import HttpConfig, read_http_config, read_sender_config, split_credentials
from gpuscope.base.limits import Limits
from gpuscope.base.yaml_file import TextDumper
from gpuscope.history.scrape.job_options import (
    PROTOCOLS,
    UNREADABLE_PROTOCOLS,
    UNSUPPORTED_KINDS,
    JobLimits,
    ProviderConfig,
    default_job_limits,
    read_job_limits,
    read_providers,
)
from gpuscope.history.scrape.relabel import ACTIONS, RelabelRule

DEFAULT_INTERVAL = 60.0
DEFAULT_TIMEOUT = 10.0

_JOB_UNSUPPORTED = (
    *(f"{kind}_sd_configs" for kind in UNSUPPORTED_KINDS), *HTTP_UNSUPPORTED,
    "scrape_protocols", "enable_compression",
    "native_histogram_bucket_limit", "native_histogram_min_bucket_factor",
    "scrape_native_histograms", "scrape_classic_histograms", "always_scrape_classic_histograms",
    "convert_classic_histograms_to_nhcb", "keep_dropped_targets", "scrape_failure_log_file",
    "metric_name_validation_scheme", "metric_name_escaping_scheme", "extra_scrape_metrics",
)  # fmt: skip
_GLOBAL_UNSUPPORTED = (
    *_JOB_UNSUPPORTED, "runtime",
)  # fmt: skip
_TOP_UNSUPPORTED = ("remote_read", "tracing", "otlp", "runtime")
_WRITE_UNSUPPORTED = (
    *HTTP_UNUSED, "name", "queue_config", "metadata_config", "send_exemplars", "send_native_histograms",
    "protobuf_message", "sigv4", "azuread", "google_iam", "round_robin_dns", "remote_timeout",
    "write_relabel_configs",
)  # fmt: skip
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|(\$))", re.ASCII)


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """Addresses with labels; `source` is their origin, for messages."""

    targets: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    name: str
    interval: float = DEFAULT_INTERVAL
    timeout: float = DEFAULT_TIMEOUT
    scheme: str = "http"
    metrics_path: str = "/metrics"
    fallback_protocol: str = ""
    """Format of responses without a usable Content-Type; "": the scrape fails."""
    params: tuple[tuple[str, tuple[str, ...]], ...] = ()
    honor_labels: bool = False
    honor_timestamps: bool = True
    track_timestamps_staleness: bool = False
    http: HttpConfig = field(default_factory=HttpConfig)
    limits: JobLimits = field(default_factory=JobLimits)
    relabel: tuple[RelabelRule, ...] = ()
    metric_relabel: tuple[RelabelRule, ...] = ()
    static: tuple[TargetGroup, ...] = ()
    files: tuple[str, ...] = ()
    """Absolute glob patterns of file_sd files."""
    files_refresh: float = 300.0
    providers: tuple[ProviderConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteWriteConfig:
    """One entry of `remote_write`."""

    url: str
    http: HttpConfig


@dataclass(frozen=True, slots=True)
class ScrapeConfig:
    jobs: tuple[ScrapeJob, ...] = ()
    external_labels: dict[str, str] = field(default_factory=dict)
    evaluation_interval: float = DEFAULT_INTERVAL
    rule_files: tuple[str, ...] = ()
    """Patterns; a relative one is relative to the working directory, because evaluation times depend on it."""
    rule_query_offset: float = 0.0
    alerting: Any = None
    """The section as it is in the file; `notify.alertmanagers` reads it."""
    folder: Path = Path()
    """The folder of the file, absolute."""
    out_of_order_seconds: float = 0.0
    """`storage.tsdb.out_of_order_time_window`."""
    query_log_file: Path | None = None
    remote_write: tuple[RemoteWriteConfig, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    """Password, token and certificate files: if one changes, the configuration must be reloaded."""
    text: str = ""
    """The file's content without secrets."""


def load_config(path: Path, limits: Limits | None = None) -> ScrapeConfig:
    return read_config(load_yaml(path), str(path), path.parent.absolute(), limits)


def read_config(document: object, name: str, folder: Path, limits: Limits | None = None) -> ScrapeConfig:
    """`limits` are the server's limits, the defaults for jobs."""
    warnings: list[str] = []
    top = ConfigMapping(document, name, folder)
    common = top.table("global")
    defaults = _defaults(common, limits or Limits())
    external = {key: _expand(value) for key, value in common.labels("external_labels").items()}
    evaluation = common.duration("evaluation_interval", DEFAULT_INTERVAL)
    rule_query_offset = common.duration("rule_query_offset", 0.0)
    query_log = common.text("query_log_file")
    common.finish(_GLOBAL_UNSUPPORTED, warnings.append)
    tables = [*top.tables("scrape_configs"), *_job_files(top)]
    jobs = tuple(_job(table, defaults, name, warnings) for table in tables)
    _distinct(jobs, name)
    read = ScrapeConfig(
        jobs=jobs,
        external_labels=external,
        evaluation_interval=evaluation,
        rule_files=tuple(_rule_pattern(name, pattern) for pattern in top.strings("rule_files")),
        rule_query_offset=rule_query_offset,
        alerting=top.raw("alerting"),
        folder=folder,
        out_of_order_seconds=_out_of_order(top.table("storage"), warnings),
        query_log_file=folder / query_log if query_log else None,
        remote_write=tuple(_remote_write(table, warnings) for table in top.tables("remote_write")),
        text=redact(document),
    )
    top.finish(_TOP_UNSUPPORTED, warnings.append)
    return replace(read, warnings=tuple(warnings), files=tuple(top.files))


def _rule_pattern(name: str, pattern: str) -> str:
    """As Prometheus joins it with the folder of the configuration file `name`."""
    return os.path.normpath(os.path.join(os.path.dirname(name), pattern))  # noqa: PTH118, PTH120


def _out_of_order(storage: ConfigMapping, warnings: list[str]) -> float:
    tsdb = storage.table("tsdb")
    seconds = tsdb.duration("out_of_order_time_window", 0.0)
    tsdb.finish(("retention", "stale_series_compaction_threshold"), warnings.append)
    storage.finish(("exemplars",), warnings.append)
    return seconds


def _expand(text: str) -> str:
    """Expands environment variables in external labels, as Prometheus 3 does."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[3] else os.environ.get(match[1] or match[2], "")

    return _VARIABLE.sub(value, text)


def _defaults(table: ConfigMapping, limits: Limits) -> ScrapeJob:
    interval = table.duration("scrape_interval", DEFAULT_INTERVAL)
    timeout = table.duration("scrape_timeout", min(DEFAULT_TIMEOUT, interval))
    _check_times(table, interval, timeout)
    return ScrapeJob(
        "", interval=interval, timeout=timeout, limits=read_job_limits(table, default_job_limits(limits))
    )


def _check_times(table: ConfigMapping, interval: float, timeout: float) -> None:
    if interval < 0.1:
        table.fail("scrape_interval", f"{interval:g}s is too short; the minimum is 100ms")
    if not 0 < timeout <= interval:
        table.fail(
            "scrape_timeout", f"{timeout:g}s must be more than 0 and at most the interval, {interval:g}s"
        )


def _job_files(top: ConfigMapping) -> list[ConfigMapping]:
    tables = []
    for pattern in top.strings("scrape_config_files"):
        for path in glob_files(str(top.folder / pattern)):
            tables += ConfigMapping(load_yaml(path), str(path), path.parent, top.files).tables("scrape_configs")
    return tables


def glob_files(pattern: str) -> list[Path]:
    # Path.glob accepts no absolute pattern before Python 3.13.
    return sorted(map(Path, glob.glob(pattern)))  # noqa: PTH207


def _distinct(jobs: tuple[ScrapeJob, ...], name: str) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise UsageError(
                f"{name}: scrape_configs: two jobs are named {job.name!r}; job names must be unique"
            )
        seen.add(job.name)


def _job(table: ConfigMapping, defaults: ScrapeJob, file: str, warnings: list[str]) -> ScrapeJob:
    name = table.text("job_name")
    if not name:
        table.fail("job_name", "every job needs a name")
    table.location = f"{file}: job {name!r}"
    interval = table.duration("scrape_interval", defaults.interval)
    timeout = table.duration("scrape_timeout", min(defaults.timeout, interval))
    _check_times(table, interval, timeout)
    files, refresh = read_file_patterns(table)
    job = ScrapeJob(
        name=name,
        interval=interval,
        timeout=timeout,
        scheme=table.one_of("scheme", "http", ("http", "https")),
        metrics_path=table.text("metrics_path", "/metrics"),
        fallback_protocol=_fallback_protocol(table, warnings),
        params=_params(table),
        honor_labels=table.switch("honor_labels", False),
        honor_timestamps=table.switch("honor_timestamps", True),
        track_timestamps_staleness=table.switch("track_timestamps_staleness", False),
        http=read_http_config(table),
        limits=read_job_limits(table, defaults.limits),
        relabel=read_relabel_rules(table, "relabel_configs"),
        metric_relabel=read_relabel_rules(table, "metric_relabel_configs"),
        static=tuple(read_group(group) for group in table.tables("static_configs")),
        files=files,
        files_refresh=refresh,
        providers=read_providers(table, warnings),
    )
    table.finish(_JOB_UNSUPPORTED, warnings.append)
    return job


def _fallback_protocol(table: ConfigMapping, warnings: list[str]) -> str:
    name = table.one_of("fallback_scrape_protocol", "", ("", *PROTOCOLS, *UNREADABLE_PROTOCOLS))
    if name in UNREADABLE_PROTOCOLS:
        warnings.append(f"{table.location}: fallback_scrape_protocol {name} is not supported and ignored")
        return ""
    return name


def _params(table: ConfigMapping) -> tuple[tuple[str, tuple[str, ...]], ...]:
    params = table.table("params")
    names = sorted(map(str, table.raw("params") or {}))
    return tuple((name, params.strings(name)) for name in names)


def read_group(table: ConfigMapping) -> TargetGroup:
    targets = table.strings("targets")
    for target in targets:
        if "/" in target or not target or any(char.isspace() for char in target):
            table.fail("targets", f"{target!r} is not a host and port; the path belongs in metrics_path")
    group = TargetGroup(targets, table.labels("labels"), table.location)
    table.finish((), lambda text: None)
    return group


def read_file_patterns(table: ConfigMapping) -> tuple[tuple[str, ...], float]:
    patterns: list[str] = []
    refresh = 300.0
    for entry in table.tables("file_sd_configs"):
        for pattern in entry.strings("files"):
            if not pattern.endswith((".json", ".yml", ".yaml")):
                entry.fail("files", f"{pattern!r} must end with .json, .yml or .yaml")
            patterns.append(str(table.folder / pattern))
        refresh = min(refresh, entry.duration("refresh_interval", 300.0))
        entry.finish((), lambda text: None)
    return tuple(patterns), refresh


def read_relabel_rules(table: ConfigMapping, key: str) -> tuple[RelabelRule, ...]:
    return tuple(_rule(entry) for entry in table.tables(key))


def _rule(table: ConfigMapping) -> RelabelRule:
    action = table.text("action", "replace").lower()
    if action not in ACTIONS:
        table.fail("action", f"{action!r} is not one of {', '.join(ACTIONS)}")
    try:
        rule = RelabelRule(
            action=action,
            source_labels=table.strings("source_labels"),
            separator=table.text("separator", ";"),
            regex=table.text("regex", "(.*)"),
            modulus=table.count("modulus", 0),
            target_label=table.text("target_label"),
            replacement=table.text("replacement", "$1"),
        )
    except ValueError as error:
        table.fail("regex", error)
    if action in _NEEDS_TARGET and not rule.target_label:
        table.fail("target_label", f"the action {action} needs it")
    if action == "hashmod" and not rule.modulus:
        table.fail("modulus", "the action hashmod needs one above 0")
    table.finish((), lambda text: None)
    return rule


_NEEDS_TARGET = ("replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal")


def _remote_write(table: ConfigMapping, warnings: list[str]) -> RemoteWriteConfig:
    url, http = split_credentials(table.text("url"), read_sender_config(table), f"{table.location}: url")
    table.finish(_WRITE_UNSUPPORTED, warnings.append)
    return RemoteWriteConfig(url, http)


def simple_config(
    groups: tuple[TargetGroup, ...],
    files: tuple[str, ...],
    interval: float,
    limits: Limits | None = None,
) -> ScrapeConfig:
    """The configuration for `--targets`: one job with Prometheus' defaults and the given interval."""
    job = ScrapeJob(
        "gpuscope",
        interval=interval,
        timeout=min(DEFAULT_TIMEOUT, interval),
        limits=default_job_limits(limits or Limits()),
        static=groups,
        files=files,
    )
    return ScrapeConfig(jobs=(job,))


# Renders a configuration document with every secret replaced, for `/api/v1/status/config`.
#
# Every value that may be a secret is replaced, also in sections that gpuscope does not use. Comments are
# lost.

SECRET = "<secret>"  # noqa: S105 - Prometheus' own word
_SECRET_KEY = re.compile(
    r"(?i)(password|passwd|secret|token|credential|api_?key|access_?key|private_?key)|^key$"
)
_FILE_KEY = re.compile(r"(?i)_(file|ref|files)$")
_HEADERS = ("headers", "http_headers", "proxy_connect_header")
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]*@")


def redact(document: object) -> str:
    """Returns YAML text."""
    if not document:
        return ""
    text: str = yaml.dump(_clean(document), Dumper=TextDumper, sort_keys=False, allow_unicode=True)
    return text


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return {key: _clean_pair(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return _USER_IN_URL.sub(f"{SECRET}@", value) if isinstance(value, str) else value


def _clean_pair(key: str, value: object) -> object:
    if key in _HEADERS and isinstance(value, dict):
        return dict.fromkeys(value, SECRET)
    if value is not None and _SECRET_KEY.search(key) and not _FILE_KEY.search(key):
        return SECRET
    return _clean(value)
