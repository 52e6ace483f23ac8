"""The eight dashboards: their panels, the rows they stand in, the variables, and the same view on the page.

Panels are those of the page (`panels.json`) and those that only Grafana has. A panel of the page that names
`$uuids`, the GPUs of a node, selects them by `$instance` here; step and time range are Grafana's own variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

PAGE_PANELS: Final = Path(__file__).parents[1] / "panels.json"
GRAFANA_PANELS: Final = Path(__file__).parent / "grafana_panels.json"

TABLE, STAT, BARS, LINES, LEVELS, STATES = "table", "stat", "bars", "lines", "levels", "states"
EVENTS, SPANS = "events", "spans"
INSTANT_KINDS: Final = (TABLE, STAT, BARS)

_REPLACED: Final = (
    ('uuid=~"$uuids"', 'instance=~"$instance"'),
    ("$window", "$__rate_interval"),
    ("$rate", "$__rate_interval"),
    ("$range", "$__range"),
)
UID_PREFIX: Final = "gpuscope-"
TIME_ON_PAGE: Final = "?from=${__from:date:seconds}&to=${__to:date:seconds}"
ONE_NODE, SEVERAL_NODES = "one_node", "several_nodes"


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    expr: str
    legend: str = ""
    column: str = ""
    """Of a table: the name of the value's column."""
    unit: str = ""
    limit: str = ""
    """notice, warning or critical: a border, drawn dashed."""


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    id: str
    kind: str
    title: str
    help: str
    unit: str
    queries: tuple[DashboardQuery, ...]
    min: float | None = None
    max: float | None = None
    link: str = ""
    """`gpu` or `node`: the dashboard that a line or a row opens."""
    is_stacked: bool = False
    is_alarm: bool = False
    """Anything above 0 is red."""
    hidden_columns: tuple[str, ...] = ()


@cache
def load_panels() -> Mapping[str, DashboardPanel]:
    rows = [*_read(PAGE_PANELS), *_read(GRAFANA_PANELS)]
    panels = [_panel(row) for row in rows]
    return {panel.id: panel for panel in panels}


def page_panels(scope: str) -> tuple[str, ...]:
    """The ids of the page's panels of a scope, in the page's order."""
    return tuple(str(row["id"]) for row in _read(PAGE_PANELS) if row["scope"] == scope)


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["panels"]
    return rows


def _panel(row: Mapping[str, Any]) -> DashboardPanel:
    is_events = row["kind"] == EVENTS
    return DashboardPanel(
        id=row["id"],
        kind=TABLE if is_events else row["kind"],
        title=row["title"],
        help=row["help"],
        unit=row["unit"],
        queries=tuple(_event_query(q) if is_events else _query(q) for q in row["queries"]),
        min=row.get("min"),
        max=row.get("max"),
        link=row.get("link", "gpu" if row.get("scope") == "node" else ""),
        is_stacked=row.get("stacked", False),
        is_alarm=row.get("alarm", False),
        hidden_columns=tuple(row.get("hide", ())),
    )


def _query(row: Mapping[str, Any]) -> DashboardQuery:
    return DashboardQuery(
        expr=_for_grafana(row["expr"]),
        legend=row.get("legend", ""),
        column=row.get("column", ""),
        unit=row.get("unit", ""),
        limit=row.get("limit", ""),
    )


def _event_query(row: Mapping[str, Any]) -> DashboardQuery:
    """Events are rows of a table that covers the whole time range; XIDs are annotations, too."""
    expr = _for_grafana(row["expr"].replace("$window", "$range").replace("$rate", "$range"))
    if row.get("value") == "timestamp":
        return DashboardQuery(f"{expr} * 1000", column="last", unit="moment")
    return DashboardQuery(expr, column="times", unit="count")


def _for_grafana(expr: str) -> str:
    for ours, theirs in _REPLACED:
        expr = expr.replace(ours, theirs)
    return expr


@dataclass(frozen=True, slots=True)
class DashboardRow:
    title: str
    panels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    name: str
    title: str
    description: str
    variables: tuple[str, ...]
    """Names of `VARIABLES`."""
    rows: tuple[DashboardRow, ...]
    page_path: str
    """The same view on gpuscope's page."""
    selector: str
    """Labels that choose the annotations."""
    default_time: str = "now-6h"

    @property
    def uid(self) -> str:
        return UID_PREFIX + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardVariable:
    name: str
    label: str
    query: str = ""
    """PromQL in Grafana's `label_values` or `query_result`; empty: `choices`."""
    choices: tuple[str, ...] = ()
    regex: str = ""
    is_multiple: bool = False
    """Several values, or all of them."""
    is_hidden: bool = False


VARIABLES: Final = {
    ONE_NODE: DashboardVariable(
        name="instance", label="Node", query="label_values(gpuscope_agent_info, instance)"
    ),
    SEVERAL_NODES: DashboardVariable(
        name="instance", label="Node", query="label_values(gpuscope_agent_info, instance)", is_multiple=True
    ),
    # The page's links name a node as the agent does; `instance` may be an address.
    "node": DashboardVariable(
        name="node",
        label="Node",
        query='label_values(gpuscope_agent_info{instance=~"$instance"}, node)',
        is_hidden=True,
    ),
    "uuid": DashboardVariable(
        name="uuid",
        label="GPU",
        query='query_result(gpuscope_gpu_memory_total_bytes{instance=~"$instance"})',
        regex='/gpu="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/',
    ),
    "partition": DashboardVariable(
        name="partition",
        label="Partition",
        query="label_values(gpuscope_slurm_partition_jobs, partition)",
        is_multiple=True,
    ),
    "namespace": DashboardVariable(
        name="namespace",
        label="Namespace",
        query='label_values(gpuscope_owner_gpus_held{kind="pod"}, namespace)',
        is_multiple=True,
    ),
    "kind": DashboardVariable(name="kind", label="Owner", choices=("user", "pod", "job")),
}

DASHBOARDS: Final = (
    Dashboard(
        name="fleet",
        title="gpuscope: fleet",
        description="Every GPU of every node: which ones work, and which ones are idle.",
        variables=(SEVERAL_NODES,),
        rows=(
            DashboardRow(
                "Now",
                (
                    "fleet_gpus", "fleet_held", "fleet_utilization",
                    "fleet_memory", "fleet_power", "fleet_alerts",
                ),
            ),
            DashboardRow("GPUs", ("fleet_levels", "fleet_spread", "fleet_models")),
            DashboardRow("Nodes", ("fleet_nodes", "fleet_power_by_node", "fleet_temperature")),
        ),
        page_path="/#/fleet",
        selector='instance=~"$instance"',
    ),
    Dashboard(
        name="node",
        title="gpuscope: node",
        description="The GPUs of one node side by side, and its host.",
        variables=(ONE_NODE, "node"),
        rows=(DashboardRow("GPUs", page_panels("node")), DashboardRow("Host", page_panels("host"))),
        page_path="/#/node/${node:percentencode}",
        selector='instance=~"$instance"',
    ),
    Dashboard(
        name="gpu",
        title="gpuscope: GPU",
        description="One GPU or MIG instance.",
        variables=(ONE_NODE, "uuid"),
        rows=(DashboardRow("GPU", ("gpu_identity", *page_panels("gpu"))),),
        page_path="/#/gpu/${uuid:percentencode}",
        selector='uuid="$uuid"',
    ),
    Dashboard(
        name="sessions",
        title="gpuscope: sessions",
        description="Who is on which GPU, and which GPUs are held without work.",
        variables=(SEVERAL_NODES,),
        rows=(
            DashboardRow("Now", ("sessions_count", "sessions_state", "sessions_now", "sessions_idle")),
            DashboardRow(
                "Users",
                (
                    "sessions_gpus_by_user", "sessions_sm_by_user",
                    "sessions_memory_by_user", "sessions_per_gpu",
                ),
            ),
        ),
        page_path="/#/sessions",
        selector='instance=~"$instance"',
    ),
    Dashboard(
        name="slurm",
        title="gpuscope: Slurm",
        description="Queue, nodes, reservations and GPUs of a Slurm cluster, and the work of its jobs.",
        variables=("partition",),
        rows=(
            DashboardRow("Now", ("slurm_up", "slurm_jobs_now", "slurm_gpus_now", "slurm_job_work")),
            DashboardRow(
                "Queue",
                (
                    "slurm_jobs", "slurm_pending", "slurm_oldest", "slurm_requested",
                    "slurm_gpus", "slurm_users", "slurm_fair_share",
                ),
            ),
            DashboardRow("Nodes", ("slurm_node_states", "slurm_node_reasons", "slurm_reservations")),
            DashboardRow("slurmctld", ("slurm_scheduler", "slurm_queries")),
        ),
        page_path="/#/fleet",
        selector='alertname=~"Slurm.*"',
    ),
    Dashboard(
        name="kubernetes",
        title="gpuscope: Kubernetes",
        description="GPUs by namespace and pod: allocated, used, unused.",
        variables=(SEVERAL_NODES, "namespace"),
        rows=(
            DashboardRow("Now", ("kubernetes_gpus", "kubernetes_pods")),
            DashboardRow(
                "Pods",
                (
                    "kubernetes_by_namespace", "kubernetes_work_by_namespace",
                    "kubernetes_pod_sm", "kubernetes_pod_memory",
                ),
            ),
            DashboardRow(
                "Allocation", ("kubernetes_unused", "kubernetes_unallocated", "kubernetes_mig")
            ),
        ),
        page_path="/#/sessions",
        selector='instance=~"$instance"',
    ),
    Dashboard(
        name="health",
        title="gpuscope: health",
        description="Alerts, XIDs, memory errors, throttling, and the health of the monitoring itself.",
        variables=(SEVERAL_NODES,),
        rows=(
            DashboardRow(
                "Now",
                (
                    "health_lost", "health_agents", "health_alerts", "health_alerts_over_time",
                    "health_xids", "health_recovery",
                ),
            ),
            DashboardRow(
                "GPUs",
                ("health_throttled", "health_margin", "health_ecc", "health_links", "health_rows"),
            ),
            DashboardRow(
                "Monitoring", ("health_sources", "health_targets", "health_age", "health_agent_cpu")
            ),
        ),
        page_path="/#/fleet",
        selector='instance=~"$instance"',
    ),
    Dashboard(
        name="usage",
        title="gpuscope: usage",
        description="GPU-hours and energy by owner, and where the time of the GPUs goes.",
        variables=(SEVERAL_NODES, "kind"),
        rows=(
            DashboardRow("Time range", ("usage_hours", "usage_energy_total", "usage_models", "usage_by_owner")),
            DashboardRow(
                "Over time",
                ("usage_split", "usage_owners", "usage_waste", "usage_unattributed", "usage_power"),
            ),
        ),
        page_path="/#/sessions",
        selector='instance=~"$instance"',
        default_time="now-7d",
    ),
)  # fmt: skip
