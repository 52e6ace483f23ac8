"""What one scrape job sets: limits, with the server's as defaults, formats, and where its targets come from.

Prometheus has no limits by default; here `base/limits.py` applies where a key is absent or 0. The label limits
apply after relabelling, which may remove labels; the limits in `text` apply while parsing and are never lower.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping, parse_config_size
from gpuscope.base.http_config import UNSUPPORTED as HTTP_UNSUPPORTED
from gpuscope.base.http_config import HttpConfig, read_http_config, split_credentials
from gpuscope.base.limits import Limits
from gpuscope.model.exposition.series_text import TextLimits

_ROWS = Limits()


@dataclass(frozen=True, slots=True)
class JobLimits:
    body_bytes: int = _ROWS.scrape_max_body_bytes
    samples: int = _ROWS.scrape_max_samples
    labels: int = _ROWS.scrape_max_labels
    label_name_length: int = _ROWS.scrape_max_label_name_bytes
    label_value_length: int = _ROWS.scrape_max_label_value_bytes
    targets: int = 0
    """0: only the server's limit on all targets applies."""
    text: TextLimits = field(default_factory=TextLimits)


def default_job_limits(rows: Limits) -> JobLimits:
    """The limits of a job that sets none."""
    return JobLimits(
        body_bytes=rows.scrape_max_body_bytes,
        samples=rows.scrape_max_samples,
        labels=rows.scrape_max_labels,
        label_name_length=rows.scrape_max_label_name_bytes,
        label_value_length=rows.scrape_max_label_value_bytes,
        text=TextLimits(
            rows.scrape_max_labels,
            rows.scrape_max_label_name_bytes,
            rows.scrape_max_label_value_bytes,
            rows.scrape_max_line_bytes,
            rows.scrape_max_metadata_bytes,
        ),
    )


def read_job_limits(table: ConfigMapping, default: JobLimits) -> JobLimits:
    labels = table.count("label_limit", 0) or default.labels
    name_length = table.count("label_name_length_limit", 0) or default.label_name_length
    value_length = table.count("label_value_length_limit", 0) or default.label_value_length
    return JobLimits(
        table.parsed("body_size_limit", 0, parse_config_size) or default.body_bytes,
        table.count("sample_limit", 0) or default.samples,
        labels,
        name_length,
        value_length,
        table.count("target_limit", 0) or default.targets,
        TextLimits(
            max(labels, default.text.labels),
            max(name_length, default.text.label_name_bytes),
            max(value_length, default.text.label_value_bytes),
            default.text.line_bytes,
            default.text.metadata_bytes,
        ),
    )


# Selects the exposition format from a target's Content-Type, as Prometheus 3 does.
#
# An absent, malformed or unknown type (`text/html`) fails the scrape, unless the job has a
# `fallback_scrape_protocol`. Protobuf is not supported; the Accept header does not request it.

PROTOCOLS = {
    "PrometheusText0.0.4": False,
    "PrometheusText1.0.0": False,
    "OpenMetricsText0.0.1": True,
    "OpenMetricsText1.0.0": True,
}
"""Values of `fallback_scrape_protocol`; True for OpenMetrics."""
UNREADABLE_PROTOCOLS = ("PrometheusProto",)

_TYPES = {"text/plain": False, "application/openmetrics-text": True}
_PROTOBUF = "application/vnd.google.protobuf"
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"  # RFC 9110's, not a secret  # noqa: S105
_MEDIA_TYPE = re.compile(rf"[ \t]*+({_TOKEN}/{_TOKEN})[ \t]*+(?=;|\Z)")
_PARAMETER = re.compile(rf';[ \t]*+({_TOKEN})=({_TOKEN}|"(?:[^"\\]|\\.)*+")[ \t]*+')
_SHOWN_CHARACTERS = 100


def is_openmetrics(content_type: str, fallback: str) -> bool:
    """True for OpenMetrics, False for text; ValueError with the reason if the scrape must fail."""
    media_type = parse_media_type(content_type)
    if media_type in _TYPES:
        return _TYPES[media_type]
    if media_type == _PROTOBUF:
        raise ValueError(f"received Content-Type {_PROTOBUF!r}, which was not requested")
    if fallback:
        return PROTOCOLS[fallback]
    if not content_type.strip():
        raise ValueError(
            "non-compliant scrape target sending blank Content-Type and no fallback_scrape_protocol specified"
        )
    shown = repr(content_type[:_SHOWN_CHARACTERS])
    if media_type is None:
        raise ValueError(f"cannot parse Content-Type {shown} and no fallback_scrape_protocol specified")
    raise ValueError(f"received unsupported Content-Type {shown} and no fallback_scrape_protocol specified")


def parse_media_type(header: str) -> str | None:
    """The type without its parameters, in lower case; None if the header is malformed."""
    match = _MEDIA_TYPE.match(header)
    if match is None:
        return None
    at, seen = match.end(), set()
    while header[at:].strip(" \t") not in ("", ";"):
        parameter = _PARAMETER.match(header, at)
        if parameter is None or parameter[1].lower() in seen:
            return None
        seen.add(parameter[1].lower())
        at = parameter.end()
    return match[1].lower()


# Reads `dns_sd_configs`, `http_sd_configs` and `kubernetes_sd_configs` of a job into `ProviderConfig`
# objects.
#
# A mistake is one sentence with file, job and key. Two configurations are equal if they find the same
# targets: credentials are not compared, because a rotated token must not empty the list of targets.

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
