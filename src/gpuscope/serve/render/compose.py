"""A compose project: compose.yaml and its overrides, Prometheus, Alertmanager, rules, Grafana's dashboards.

Profiles: `single` (agent, Prometheus, Grafana, Alertmanager), `up` (gpuscope alone), `node` and `master` (a
cluster). How containers reach the GPUs is an override file, chosen in `.env`.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.serve.render import RenderedFile, read_shipped
from gpuscope.serve.render.grafana import GrafanaPlan, grafana_files
from gpuscope.serve.render.grafana.dashboard_texts import ENGLISH
from gpuscope.serve.render.prometheus import (
    AlertmanagerPlan,
    ScrapePlan,
    alertmanager_file,
    prometheus_files,
    rule_files,
)

STATIC_FILES: Final = (
    "compose.yaml",
    "compose.nvidia.yaml",
    "compose.demo.yaml",
    "compose.slurm.yaml",
)
GPU_ACCESS: Final = ("nvidia", "devices", "demo")
DEVICES_FILE: Final = "compose.devices.yaml"
FIRST_GPU_LINE: Final = "      - /dev/nvidia0:/dev/nvidia0\n"
MAX_GPU_DEVICES: Final = 64
DASHBOARDS_PATH: Final = "/var/lib/gpuscope/dashboards"
"""Inside Grafana's container."""
QUERY_LOG: Final = "/prometheus/query.log"
SETTINGS_FILE: Final = ".env"
SECRET_MODE: Final = 0o444
"""The folder is closed to other users of the machine (0700); inside a container the service's user reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposePlan:
    nodes: tuple[str, ...]
    instance: str
    """This server's name, the `instance` label of profile `single`."""
    slurm_host: str = ""
    gpu_access: str = "nvidia"
    gpu_count: int = 1
    language: str = ENGLISH
    """Of Grafana's dashboards."""
    page_url: str = ""
    """gpuscope's page, for links to it in Grafana and in alerts."""


def compose_files(plan: ComposePlan) -> list[RenderedFile]:
    """Every file that a new version replaces; `kept_files` has the others."""
    static = [RenderedFile(name, read_shipped(f"compose/{name}")) for name in STATIC_FILES]
    return [*static, RenderedFile(DEVICES_FILE, _devices_text(plan.gpu_count)), *_configuration(plan)]


def kept_files(plan: ComposePlan) -> list[RenderedFile]:
    """Files that the user edits, and the password: they are kept when the project is rendered again."""
    settings = f"# Rendered with: {render_command(plan)}\n" + (
        read_shipped("compose/env.example")
        .replace("compose.yaml:compose.nvidia.yaml\n", chosen_files(plan) + "\n")
        .replace("GPUSCOPE_NODE=\n", f"GPUSCOPE_NODE={plan.instance}\n")
        .replace("GPUSCOPE_ALLOWED_HOSTS=localhost\n", f"GPUSCOPE_ALLOWED_HOSTS=localhost,{plan.instance}\n")
    )
    password = secrets.token_urlsafe(18) + "\n"
    receivers = alertmanager_file(AlertmanagerPlan()).content
    return [
        RenderedFile(SETTINGS_FILE, settings, keep=True),
        RenderedFile("secrets/grafana_admin_password", password, SECRET_MODE, keep=True),
        RenderedFile("alertmanager/alertmanager.yml", receivers, keep=True),
        *(RenderedFile(path, text, keep=True) for path, text in _scrape_files(plan) if _is_edited(path)),
    ]


def chosen_files(plan: ComposePlan) -> str:
    """The value of COMPOSE_FILE."""
    slurm = ["compose.slurm.yaml"] if plan.slurm_host else []
    return ":".join(["compose.yaml", f"compose.{plan.gpu_access}.yaml", *slurm])


def render_command(plan: ComposePlan) -> str:
    """The command that renders this plan again, after an upgrade; without --out."""
    options = {
        "--instance": plan.instance,
        "--nodes": "" if plan.nodes == (plan.instance,) else ",".join(plan.nodes),
        "--slurm": plan.slurm_host,
        "--gpu-access": plan.gpu_access,
        "--gpu-count": str(plan.gpu_count) if plan.gpu_access == "devices" else "",
        "--language": plan.language,
        "--page-url": plan.page_url,
    }
    words = [word for flag, value in options.items() if value for word in (flag, value)]
    return shlex.join(["gpuscope", "render", "compose", *words])


def _configuration(plan: ComposePlan) -> Iterator[RenderedFile]:
    yield from (RenderedFile(path, text) for path, text in _scrape_files(plan) if not _is_edited(path))
    grafana = GrafanaPlan(
        language=plan.language,
        page_url=plan.page_url,
        prometheus_url="$PROMETHEUS_URL",
        dashboards_path=DASHBOARDS_PATH,
        scrape_interval=_single(plan).scrape_interval,
    )
    for file in grafana_files(grafana):
        yield RenderedFile(f"grafana/{file.path}", file.content)


def _scrape_files(plan: ComposePlan) -> Iterator[tuple[str, str]]:
    """Path and content of Prometheus' files; the rules are the same for both profiles."""
    for profile, scrape_plan in (("single", _single(plan)), ("master", _master(plan))):
        for file in prometheus_files(scrape_plan):
            if not file.path.startswith("rules/"):
                yield f"prometheus/{profile}/{file.path}", file.content
    yield from ((file.path, file.content) for file in rule_files(_single(plan).gpu_job, plan.page_url))


def _is_edited(path: str) -> bool:
    """A new node is a line in a target file."""
    return "/targets/" in path


def _single(plan: ComposePlan) -> ScrapePlan:
    return ScrapePlan(
        nodes=("agent",),
        has_node_exporter=False,
        alertmanager_host="alertmanager",
        query_log_file=QUERY_LOG,
        instance_names={"agent": plan.instance},
    )


def _master(plan: ComposePlan) -> ScrapePlan:
    return ScrapePlan(
        nodes=plan.nodes,
        slurm_host=plan.slurm_host,
        alertmanager_host="localhost",
        query_log_file=QUERY_LOG,
    )


def _devices_text(gpu_count: int) -> str:
    lines = "".join(FIRST_GPU_LINE.replace("nvidia0", f"nvidia{index}") for index in range(gpu_count))
    return read_shipped(f"compose/{DEVICES_FILE}").replace(FIRST_GPU_LINE, lines)


def count_gpu_devices(root: Path = Path("/")) -> int:
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in (root / "dev").glob("nvidia*"))
