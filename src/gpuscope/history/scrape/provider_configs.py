"""Reads `dns_sd_configs`, `http_sd_configs` and `kubernetes_sd_configs` of a job into `ProviderConfig` objects.

A mistake is one sentence with file, job and key. Two configurations are equal if they find the same targets:
credentials are not compared, because a rotated token must not empty the list of targets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import UNSUPPORTED as HTTP_UNSUPPORTED
from gpuscope.base.http_config import HttpConfig, read_http_config, split_credentials

SUPPORTED_KINDS = ("dns", "http", "kubernetes")
UNSUPPORTED_KINDS = (
    "azure", "consul", "digitalocean", "docker", "dockerswarm", "ec2", "eureka", "gce", "hetzner", "ionos",
    "kuma", "lightsail", "linode", "marathon", "nerve", "nomad", "openstack", "ovhcloud", "puppetdb",
    "scaleway", "serverset", "stackit", "triton", "uyuni", "vultr",
)  # fmt: skip
RECORD_TYPES = ("SRV", "A", "AAAA", "MX", "NS")
ROLES = ("pod", "endpointslice", "node")
_OTHER_ROLES = ("service", "endpoints", "ingress")
_SELECTOR_ROLES = {
    "pod": ("pod", "node"),
    "endpointslice": ("pod", "service", "endpointslice"),
    "node": ("node",),
}
_HTTP_KEYS = (
    "basic_auth", "authorization", "bearer_token", "bearer_token_file", "tls_config", "http_headers",
    "follow_redirects", *HTTP_UNSUPPORTED,
)  # fmt: skip
_UNSUPPORTED_METADATA = ("namespace", "deployment", "job", "cronjob")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class DnsProviderConfig:
    names: tuple[str, ...]
    record_type: str = "SRV"
    port: int = 0
    refresh_seconds: float = 30.0
    mechanism: ClassVar[str] = "dns"


@dataclass(frozen=True, slots=True)
class HttpProviderConfig:
    url: str
    refresh_seconds: float = 60.0
    http: HttpConfig = field(default_factory=HttpConfig, compare=False)
    mechanism: ClassVar[str] = "http"


@dataclass(frozen=True, slots=True)
class Selector:
    """Of a Kubernetes list: `label` and `field` as kubectl's `-l` and `--field-selector`."""

    role: str
    label: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class KubernetesProviderConfig:
    role: str
    api_server: str = ""
    """"": the API server of the cluster that this process is in, with the pod's service account."""
    namespaces: tuple[str, ...] = ()
    own_namespace: bool = False
    selectors: tuple[Selector, ...] = ()
    attach_node: bool = False
    http: HttpConfig = field(default_factory=HttpConfig, compare=False)
    mechanism: ClassVar[str] = "kubernetes"

    def selector(self, role: str) -> Selector:
        return next((selector for selector in self.selectors if selector.role == role), Selector(role))


ProviderConfig = DnsProviderConfig | HttpProviderConfig | KubernetesProviderConfig


def read_providers(table: ConfigMapping, warnings: list[str]) -> tuple[ProviderConfig, ...]:
    """The providers of one job."""
    return (
        *(_dns(entry) for entry in table.tables("dns_sd_configs")),
        *(_http(entry, warnings) for entry in table.tables("http_sd_configs")),
        *(_kubernetes(entry, warnings) for entry in table.tables("kubernetes_sd_configs")),
    )


def _refresh_seconds(table: ConfigMapping, default: float) -> float:
    seconds = table.duration("refresh_interval", default)
    if seconds <= 0:
        table.fail("refresh_interval", "must be more than 0")
    return seconds


def _dns(table: ConfigMapping) -> DnsProviderConfig:
    names = table.strings("names")
    if not names:
        table.fail("names", "at least one name is needed")
    record_type = table.text("type", "SRV").upper()
    if record_type not in RECORD_TYPES:
        table.fail("type", f"{record_type!r} is not one of {', '.join(RECORD_TYPES)}")
    port = table.count("port", 0)
    if record_type != "SRV" and not 0 < port < 65_536:
        table.fail("port", f"records of type {record_type} name no port; set one of 1 to 65535 here")
    config = DnsProviderConfig(names, record_type, port, _refresh_seconds(table, 30.0))
    table.finish((), lambda text: None)
    return config


def _http(table: ConfigMapping, warnings: list[str]) -> HttpProviderConfig:
    if not table.has("url"):
        table.fail("url", "a URL is needed")
    url, http = split_credentials(table.text("url"), read_http_config(table), f"{table.location}: url")
    config = HttpProviderConfig(url, _refresh_seconds(table, 60.0), http)
    table.finish(HTTP_UNSUPPORTED, warnings.append)
    return config


def _kubernetes(table: ConfigMapping, warnings: list[str]) -> KubernetesProviderConfig:
    role = table.text("role")
    if role in _OTHER_ROLES:
        table.fail("role", f"{role} is not supported; use one of {', '.join(ROLES)}")
    if role not in ROLES:
        table.fail("role", f"{role!r} is not one of {', '.join(ROLES)}")
    if table.has("kubeconfig_file"):
        table.fail("kubeconfig_file", "is not supported; use api_server with authorization and tls_config")
    server = table.text("api_server")
    custom = [key for key in _HTTP_KEYS if table.has(key)]
    if custom and not server:
        table.fail(custom[0], "set api_server too; without it the pod's service account is used")
    namespaces = table.table("namespaces")
    own = namespaces.switch("own_namespace", False)
    if own and server:
        namespaces.fail("own_namespace", "cannot be used with api_server; list the namespace in names")
    names = namespaces.strings("names")
    namespaces.finish((), lambda text: None)
    http = read_http_config(table)
    if server:
        server, http = split_credentials(server.rstrip("/"), http, f"{table.location}: api_server")
    metadata = table.table("attach_metadata")
    attach_node = metadata.switch("node", False)
    metadata.finish(_UNSUPPORTED_METADATA, warnings.append)
    config = KubernetesProviderConfig(role, server, names, own, _selectors(table, role), attach_node, http)
    table.finish(HTTP_UNSUPPORTED, warnings.append)
    return config


def _selectors(table: ConfigMapping, role: str) -> tuple[Selector, ...]:
    selectors: dict[str, Selector] = {}
    for entry in table.tables("selectors"):
        selected = entry.text("role")
        if selected not in _SELECTOR_ROLES[role]:
            allowed = ", ".join(_SELECTOR_ROLES[role])
            entry.fail("role", f"{selected!r}: the role {role} has selectors of {allowed}")
        if selected in selectors:
            entry.fail("role", f"there are two selectors of {selected}")
        selectors[selected] = Selector(selected, entry.text("label"), entry.text("field"))
        entry.finish((), lambda text: None)
    return tuple(selectors.values())
