"""prometheus.yml for a cluster: jobs `node`, `gpuscope` (or `dcgm`) and `slurm`, with host names as `instance`.

Input: a `ScrapePlan`. Output: prometheus.yml, one target file per job and the shipped rules; or prometheus.yml
alone, with the targets in it. Prometheus notices a changed target file without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gpuscope.serve.render import RenderedFile
from gpuscope.serve.render.host_names import host_and_port
from gpuscope.serve.render.ports import AGENT_PORT, ALERTMANAGER_PORT, NODE_EXPORTER_PORT, SLURM_EXPORTER_PORT
from gpuscope.serve.render.rendered_rules import rule_files

GPU_JOBS: Final = ("gpuscope", "dcgm")
HEADER: Final = (
    "# Written by `gpuscope render`. Targets are in targets/; Prometheus reads them again when they change.\n"
)
INLINE_HEADER: Final = (
    "# Written by `gpuscope render prometheus`. With --out DIR, targets and rules are written as files.\n"
)


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
