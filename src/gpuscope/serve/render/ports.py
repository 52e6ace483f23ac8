"""The ports of every role, in one table: what listens there, and who connects to it.

Rendered files, firewall commands, `doctor --server` and docs/ports.md read this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
