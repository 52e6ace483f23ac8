"""The ports of every role, in one table, and the commands that open them: ufw, firewalld, GCE.

Rendered files, `doctor --server` and docs/ports.md read this table too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.base.errors import UsageError

AGENT_PORT: Final = 9400
NVIDIA_GPU_EXPORTER_PORT: Final = 9835
NODE_EXPORTER_PORT: Final = 9100
SLURM_EXPORTER_PORT: Final = 8080
PROMETHEUS_PORT: Final = 9090
ALERTMANAGER_PORT: Final = 9093
GRAFANA_PORT: Final = 3000
SERVER_PORT: Final = 9470

NODE, MASTER = "node", "master"
ROLES: Final = (NODE, MASTER)
"""A node has GPUs; the master scrapes the nodes. On one server, both roles are one machine."""

MONITORING, USERS, LOCAL = "the master", "users", "only the machine itself"
GCE_TAGS: Final = {MASTER: "prometheus-master", "node": "prometheus-worker"}


@dataclass(frozen=True, slots=True)
class PortRow:
    number: int
    roles: tuple[str, ...]
    listener: str
    opened_to: str
    """MONITORING, USERS, or LOCAL: no firewall rule, because the service has no login."""
    optional: bool = False
    """Opened only on request."""


PORTS: Final = (
    PortRow(AGENT_PORT, (NODE,), "gpuscope agent, dcgm-exporter", MONITORING),
    PortRow(NODE_EXPORTER_PORT, (NODE, MASTER), "node exporter", MONITORING),
    PortRow(NVIDIA_GPU_EXPORTER_PORT, (NODE,), "nvidia_gpu_exporter", MONITORING, optional=True),
    PortRow(SLURM_EXPORTER_PORT, (MASTER,), "slurm-exporter", MONITORING),
    PortRow(GRAFANA_PORT, (MASTER,), "Grafana", USERS),
    PortRow(SERVER_PORT, (MASTER,), "gpuscope up, gpuscope server", USERS),
    PortRow(PROMETHEUS_PORT, (MASTER,), "Prometheus", LOCAL),
    PortRow(ALERTMANAGER_PORT, (MASTER,), "Alertmanager", LOCAL),
)


def ports_of(role: str) -> tuple[PortRow, ...]:
    return tuple(row for row in PORTS if role in row.roles)


def listener_on(port: int) -> str:
    """What usually listens on a port; empty if the table does not have it."""
    return next((row.listener for row in PORTS if row.number == port), "")


def parse_network(text: str, flag: str) -> str:
    """A CIDR range, or one address."""
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r} is not a network: {error}; for example 10.0.0.0/16") from None


def firewall_lines(program: str, role: str, network: str) -> list[str]:
    rows = [row for row in ports_of(role) if row.opened_to != LOCAL and not row.optional]
    return RENDERERS[program](rows, role, network)


def _ufw(rows: Sequence[PortRow], role: str, network: str) -> list[str]:
    return [
        f"sudo ufw allow proto tcp from {network} to any port {row.number} comment '{row.listener}'"
        for row in rows
    ]


def _firewalld(rows: Sequence[PortRow], role: str, network: str) -> list[str]:
    family = "ipv6" if ":" in network else "ipv4"
    rules = [
        f'rule family="{family}" source address="{network}" port port="{row.number}" protocol="tcp" accept'
        for row in rows
    ]
    lines = [f"sudo firewall-cmd --permanent --add-rich-rule='{rule}'" for rule in rules]
    return [*lines, "sudo firewall-cmd --reload"]


def _gce(rows: Sequence[PortRow], role: str, network: str) -> list[str]:
    tag = GCE_TAGS[role]
    # icmp, because users test a connection with ping first.
    allowed = ",".join([*(f"tcp:{row.number}" for row in rows), "icmp"])
    return [
        f"gcloud compute firewall-rules create allow-{tag} --direction=INGRESS --source-ranges={network}"
        f" --target-tags={tag} --allow={allowed}",
        f"gcloud compute instances add-tags INSTANCE --tags={tag}",
    ]


RENDERERS: Final[dict[str, Callable[[Sequence[PortRow], str, str], list[str]]]] = {
    "ufw": _ufw,
    "firewalld": _firewalld,
    "gce": _gce,
}
