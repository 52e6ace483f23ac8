"""prometheus.yml and alertmanager.yml for a cluster: jobs `node`, `gpuscope` (or `dcgm`) and `slurm`.

Input: a `ScrapePlan`, whose host names are checked: they become targets and labels in YAML files. Output:
prometheus.yml, one target file per job and the shipped rules that fit the metrics scraped; or prometheus.yml
alone, with the targets in it. Prometheus notices a changed target file without a restart.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gpuscope.agent.sources.slurm.gres import expand_hostlist
from gpuscope.base.errors import UsageError
from gpuscope.judge.rules.shipped import rule_files as shipped_rule_files
from gpuscope.model.vendor import advices
from gpuscope.serve.render import FILES, RenderedFile, read_shipped
from gpuscope.serve.render.ports import AGENT_PORT, ALERTMANAGER_PORT, NODE_EXPORTER_PORT, SLURM_EXPORTER_PORT

_NAME = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?"
)
MAX_NAME_CHARACTERS = 253  # RFC 1035
MAX_NAMES = 10_000
SUFFIX: Final = ".rules.yml"
_OF_EXPORTERS: Final = {
    rules.group: rules.metrics for advice in advices().values() for rules in advice.exporter_rules
}
METRICS: Final = ("gpuscope", *_OF_EXPORTERS.values())
_ONLY_FOR: Final = {
    "gpuscope-gpu": "gpuscope",
    "gpuscope-node": "gpuscope",
    "gpuscope-rollups": "gpuscope",
    "gpuscope-use": "gpuscope",
    **_OF_EXPORTERS,
}
"""Files about one exporter's metrics; all others fit every one."""
NOT_RENDERED: Final = frozenset({"instances"})
"""`InstanceDown` fires for every target, also where `HostDown` does."""
GPU_JOBS: Final = ("gpuscope", "dcgm")
HEADER: Final = (
    "# Written by `gpuscope render`. Targets are in targets/; Prometheus reads them again when they change.\n"
)
INLINE_HEADER: Final = (
    "# Written by `gpuscope render prometheus`. With --out DIR, targets and rules are written as files.\n"
)


def parse_host_names(text: str, flag: str) -> tuple[str, ...]:
    """`a,b,c` or a hostlist as names, in the given order."""
    try:
        names = [word.strip() for word in expand_hostlist(text, MAX_NAMES) if word.strip()]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}; for example a,b,c or gpu[1-3]") from None
    if not names:
        raise UsageError(
            f"{flag}: {text!r} has no host name; give names separated by commas, for example a,b,c"
        )
    for name in names:
        check_host_name(name, flag)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{flag}: {twice} is given twice; name each host once")
    return tuple(names)


def check_host_name(name: str, flag: str) -> str:
    if _is_address(name) or (_NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARACTERS):
        return name
    hint = (
        "give the name without the port"
        if re.search(r":\d+$", name)
        else "letters, digits, - and . are allowed"
    )
    raise UsageError(f"{flag}: {name!r} is not a host name or address; {hint}")


def host_and_port(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def rule_files(metrics: str = "gpuscope", page_url: str = "") -> list[RenderedFile]:
    """As `rules/NAME.rules.yml`. `page_url` is gpuscope's page as users reach it: without it, alerts have no
    `runbook_url`."""
    paths = sorted((FILES / "prometheus" / "rules").glob("*.yml"))
    explained = shipped_rule_files(page_url)
    return [
        RenderedFile(f"rules/{path.stem}{SUFFIX}", explained.get(path.name) or path.read_text("utf-8"))
        for path in paths
        if _ONLY_FOR.get(path.stem, metrics) == metrics and path.stem not in NOT_RENDERED
    ]


@dataclass(frozen=True, slots=True)
class ExporterPorts:
    agent: int = AGENT_PORT
    node_exporter: int = NODE_EXPORTER_PORT
    slurm_exporter: int = SLURM_EXPORTER_PORT
    alertmanager: int = ALERTMANAGER_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapePlan:
    nodes: tuple[str, ...]
    slurm_host: str = ""
    """The host of the Slurm exporter; it also has a node exporter."""
    gpu_job: str = "gpuscope"
    has_node_exporter: bool = True
    alertmanager_host: str = ""
    scrape_interval: str = "15s"
    external_labels: Mapping[str, str] = field(default_factory=lambda: {"monitor": "gpuscope"})
    query_log_file: str = ""
    ports: ExporterPorts = ExporterPorts()
    page_url: str = ""
    """gpuscope's page, for `runbook_url` of alerts."""
    instance_names: Mapping[str, str] = field(default_factory=dict)
    """The `instance` label of a host whose address is not its name, for example a compose service."""


def prometheus_files(plan: ScrapePlan, *, name: str = "prometheus.yml") -> list[RenderedFile]:
    """With targets and rules as separate files."""
    jobs = _targets_of_jobs(plan)
    configs = [{"job_name": job, "file_sd_configs": [{"files": [f"targets/{job}.yml"]}]} for job in jobs]
    return [
        RenderedFile(name, HEADER + _dump(_document(plan, configs))),
        *(RenderedFile(f"targets/{job}.yml", _one_per_line(groups)) for job, groups in jobs.items()),
        *rule_files(plan.gpu_job, plan.page_url),
    ]


def prometheus_text(plan: ScrapePlan) -> str:
    """One file with the targets in it."""
    configs = [{"job_name": job, "static_configs": groups} for job, groups in _targets_of_jobs(plan).items()]
    return INLINE_HEADER + _dump(_document(plan, configs))


def _targets_of_jobs(plan: ScrapePlan) -> dict[str, list[dict[str, Any]]]:
    ports = plan.ports
    jobs: dict[str, list[dict[str, Any]]] = {}
    if plan.has_node_exporter:
        # The master of a Slurm cluster has no GPU, but a node exporter as every machine.
        hosts = dict.fromkeys([*([plan.slurm_host] if plan.slurm_host else []), *plan.nodes])
        jobs["node"] = [_group(plan, host, ports.node_exporter) for host in hosts]
    jobs[plan.gpu_job] = [_group(plan, host, ports.agent) for host in plan.nodes]
    if plan.slurm_host:
        jobs["slurm"] = [_group(plan, plan.slurm_host, ports.slurm_exporter)]
    return jobs


def _group(plan: ScrapePlan, host: str, port: int) -> dict[str, Any]:
    # The same `instance` in every job: `on (instance)` then joins a node's GPU, host and Slurm series.
    instance = plan.instance_names.get(host, host)
    return {"targets": [host_and_port(host, port)], "labels": {"instance": instance}}


def _document(plan: ScrapePlan, scrape_configs: list[dict[str, Any]]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "scrape_interval": plan.scrape_interval,
        "evaluation_interval": plan.scrape_interval,
        "external_labels": dict(plan.external_labels),
    }
    if plan.query_log_file:
        settings["query_log_file"] = plan.query_log_file
    document: dict[str, Any] = {"global": settings, "rule_files": ["rules/*.rules.yml"]}
    if plan.alertmanager_host:
        target = host_and_port(plan.alertmanager_host, plan.ports.alertmanager)
        document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
    return {**document, "scrape_configs": scrape_configs}


def _one_per_line(groups: list[dict[str, Any]]) -> str:
    """A new node is then one more line."""
    lines = (yaml.safe_dump(group, default_flow_style=True, sort_keys=False, width=4096) for group in groups)
    return "".join(f"- {line}" for line in lines)


def _dump(document: object) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


# alertmanager.yml: routes by severity, inhibition, and receivers whose secrets stay in files.
#
# Without a receiver, alerts are grouped and shown in Alertmanager's own page, but not sent anywhere.

ALERTMANAGER_HEADER: Final = "# Written by `gpuscope render alertmanager`.\n"
NO_RECEIVER: Final = (
    "# No receiver is configured: alerts are shown on Alertmanager's page and sent nowhere. Render again with\n"
    "# --webhook-url-file, --slack-url-file or --email to send them.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerPlan:
    webhook_url_file: str = ""
    slack_url_file: str = ""
    slack_channel: str = ""
    email: str = ""
    smtp_host: str = ""
    smtp_from: str = ""
    smtp_user: str = ""
    smtp_password_file: str = ""


def alertmanager_file(plan: AlertmanagerPlan) -> RenderedFile:
    # Its routes and inhibition rules belong to the shipped rule files.
    document = yaml.safe_load(read_shipped("prometheus/alertmanager.yml"))
    if plan.email:
        document["global"] = {**document.get("global", {}), **_smtp(plan)}
    settings = _receiver_settings(plan)
    for receiver in document["receivers"]:
        if receiver["name"] == document["route"]["receiver"]:
            receiver.update(settings)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return RenderedFile("alertmanager.yml", ALERTMANAGER_HEADER + ("" if settings else NO_RECEIVER) + text)


def _receiver_settings(plan: AlertmanagerPlan) -> dict[str, Any]:
    receiver: dict[str, Any] = {}
    if plan.webhook_url_file:
        receiver["webhook_configs"] = [{"url_file": plan.webhook_url_file, "send_resolved": True}]
    if plan.slack_url_file:
        slack: dict[str, Any] = {"api_url_file": plan.slack_url_file, "send_resolved": True}
        if plan.slack_channel:
            slack["channel"] = plan.slack_channel
        receiver["slack_configs"] = [slack]
    if plan.email:
        receiver["email_configs"] = [{"to": plan.email, "send_resolved": True}]
    return receiver


def _smtp(plan: AlertmanagerPlan) -> dict[str, Any]:
    smtp: dict[str, Any] = {
        "smtp_smarthost": plan.smtp_host,
        "smtp_from": plan.smtp_from or plan.email,
    }
    if plan.smtp_user:
        smtp["smtp_auth_username"] = plan.smtp_user
    if plan.smtp_password_file:
        smtp["smtp_auth_password_file"] = plan.smtp_password_file
    return smtp
