"""Commands that open a role's ports: for ufw, firewalld and Google Compute Engine.

Ports of services without a login (Prometheus, Alertmanager) get no rule: they listen on the loopback address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.serve.render.ports import LOCAL, MASTER, PortRow, ports_of

GCE_TAGS: Final = {MASTER: "prometheus-master", "node": "prometheus-worker"}


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
