"""`dns_sd_configs`: targets from SRV, A, AAAA, MX or NS records of the name servers in resolv.conf.

A name that exists without records, or does not exist, has no targets. A name whose lookup fails keeps its
targets. dnspython sends and reads the messages; it is loaded with the first lookup. Its resolver is not used:
names and servers are tried in the order in which Prometheus tries them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.fetch import root_cause
from gpuscope.history.scrape.job_options import DnsProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError, join_host_port, refresh_forever

if TYPE_CHECKING:
    from dns.message import Message
    from dns.name import Name

log = logging.getLogger("gpuscope.scrape")
RESOLV_CONF = Path("/etc/resolv.conf")
PORT = 53
TIMEOUT_SECONDS = 2.0
UDP_PAYLOAD_BYTES = 4096
"""What the answer of a server that supports EDNS0 may have, as Prometheus asks for."""
_MAX_NDOTS = 15
_ESCAPED = frozenset(b".()\";@\\' ")
_WITH_LABELS = ("SRV", "MX", "NS")


@dataclass(frozen=True, slots=True)
class DnsRecord:
    record_type: str
    target: str
    """An IP address, or a name with a final dot."""
    port: int = 0


class DnsProvider:
    def __init__(self, config: DnsProviderConfig, *, resolv_conf: Path = RESOLV_CONF, port: int = PORT) -> None:
        self.config = config
        self.failures = 0
        self._resolv_conf = resolv_conf
        self._port = port
        self._adopted: tuple[TargetGroup, ...] = ()
        self._by_name: dict[str, tuple[TargetGroup, ...]] = {}
        self._episodes = {
            name: EpisodeLog(log, f"DNS records of {name}", level=logging.ERROR) for name in config.names
        }

    def groups(self) -> tuple[TargetGroup, ...]:
        by_name = dict(self._by_name)
        kept = (group for group in self._adopted if group.source not in by_name)
        return (*kept, *(group for name in self.config.names for group in by_name.get(name, ())))

    def adopt(self, groups: tuple[TargetGroup, ...]) -> None:
        self._adopted = groups

    async def run(self, on_change: Callable[[], None]) -> None:
        await refresh_forever(self._refresh, self.config.refresh_seconds, on_change)

    async def _refresh(self) -> bool:
        return any(await asyncio.gather(*(self._refresh_name(name) for name in self.config.names)))

    async def _refresh_name(self, name: str) -> bool:
        try:
            resolver = read_resolver_config(self._resolv_conf)
            records = await resolve(name, self.config.record_type, resolver, self._port)
        except DiscoveryError as error:
            self.failures += 1
            self._episodes[name].failed(f"{error}; keeping the last valid targets")
            return False
        self._episodes[name].succeeded()
        groups = tuple(_groups(name, records, self.config.port))
        is_changed = self._by_name.get(name) != groups
        self._by_name[name] = groups
        return is_changed


def _groups(name: str, records: tuple[DnsRecord, ...], port: int) -> list[TargetGroup]:
    groups = []
    for record in records:
        kind = record.record_type
        # CNAME records accompany A and AAAA records.
        if kind not in ("A", "AAAA", *_WITH_LABELS):
            continue
        labels = {"__meta_dns_name": name}
        if kind in _WITH_LABELS:
            labels[f"__meta_dns_{kind.lower()}_record_target"] = record.target
        if kind == "SRV":
            labels["__meta_dns_srv_record_port"] = str(record.port)
        host = record.target.rstrip(".") if kind in _WITH_LABELS else record.target
        address = join_host_port(host, record.port if kind == "SRV" else port)
        groups.append(TargetGroup((address,), labels, name))
    return groups


@dataclass(frozen=True, slots=True)
class ResolverConfig:
    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = 1

    def names(self, name: str) -> tuple[str, ...]:
        """The fully qualified names to try, in this order."""
        if name.endswith("."):
            return (name,)
        full = f"{name}."
        searched = tuple(f"{name}.{domain.removesuffix('.')}." for domain in self.search)
        return (full, *searched) if name.count(".") + 1 > self.ndots else (*searched, full)


def read_resolver_config(path: Path = RESOLV_CONF) -> ResolverConfig:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise DiscoveryError(f"{path} cannot be read: {error.strerror}") from None
    servers: list[str] = []
    search: tuple[str, ...] = ()
    ndots = 1
    for line in lines:
        match line.split():
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["domain", *domains]:
                search = tuple(domains[:1])
            case ["search", *domains]:
                search = tuple(domains)
            case ["options", *options]:
                ndots = _ndots(options, ndots)
    return ResolverConfig(tuple(servers), search, ndots)


def _ndots(options: list[str], default: int) -> int:
    for option in options:
        key, _, value = option.partition(":")
        if key == "ndots":
            default = min(int(value), _MAX_NDOTS) if value.isascii() and value.isdigit() else 0
    return default


async def resolve(
    name: str, record_type: str, config: ResolverConfig, port: int = PORT
) -> tuple[DnsRecord, ...]:
    """Empty if every name of the search list is known not to exist."""
    from dns.rcode import NOERROR

    failures: list[str] = []
    for full_name in config.names(name):
        try:
            answer = await _query_any_server(full_name, record_type, config.servers, port)
        except DiscoveryError as error:
            failures.append(str(error))  # a later name may still have an answer
            continue
        if answer.rcode() == NOERROR:
            return tuple(_record(data) for rrset in answer.answer for data in rrset)
    if failures:
        raise DiscoveryError(f"{name!r} cannot be resolved: {failures[0]}")
    return ()


async def _query_any_server(name: str, record_type: str, servers: tuple[str, ...], port: int) -> Message:
    from dns.exception import DNSException, Timeout
    from dns.rcode import NOERROR, NXDOMAIN

    failures: list[str] = []
    for server in servers:
        try:
            answer = await _query_server(name, record_type, server, port)
        except Timeout:
            failures.append(f"{server} does not answer within {TIMEOUT_SECONDS:g} s")
        except (OSError, EOFError, DNSException, ValueError) as error:
            failures.append(f"{server}: {root_cause(error)}")
        else:
            if answer.rcode() in (NOERROR, NXDOMAIN):
                return answer
            failures.append(f"{server} answers with the error code {int(answer.rcode())}")
    raise DiscoveryError(failures[0] if failures else "resolv.conf names no name server")


async def _query_server(name: str, record_type: str, server: str, port: int) -> Message:
    """Over UDP, or over TCP if the answer does not fit. Late, forged and broken packets are ignored: the real
    answer may follow."""
    from dns.asyncbackend import get_backend
    from dns.asyncquery import udp_with_fallback
    from dns.flags import TC
    from dns.message import make_query
    from dns.name import Name

    labels = [label.encode() for label in name.removesuffix(".").split(".")]
    question = make_query(Name([*labels, b""]), record_type, use_edns=0, payload=UDP_PAYLOAD_BYTES)
    answer, _ = await udp_with_fallback(
        question,
        server,
        TIMEOUT_SECONDS,
        port,
        ignore_unexpected=True,
        one_rr_per_rrset=True,  # in the order of the message
        backend=get_backend("asyncio"),
        ignore_errors=True,
    )
    if answer.flags & TC:
        raise ValueError("the answer does not fit into 64 KiB")
    return answer


def _record(data: Any) -> DnsRecord:
    """`data` is an Rdata, whose attributes depend on its type."""
    kind = data.rdtype.name
    if kind in ("A", "AAAA"):
        address = ipaddress.ip_address(data.address)
        # Go writes an IPv4 address in an AAAA record as IPv4.
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return DnsRecord(kind, str(mapped or address))
    if kind == "SRV":
        return DnsRecord(kind, _name_text(data.target), data.port)
    if kind in ("MX", "NS"):
        return DnsRecord(kind, _name_text(data.exchange if kind == "MX" else data.target))
    return DnsRecord(kind, "")


def _name_text(name: Name) -> str:
    """In presentation format, as miekg/dns gives it to Prometheus."""
    return ".".join("".join(map(_character, label)) for label in name.labels[:-1]) + "."


def _character(byte: int) -> str:
    if byte in _ESCAPED:
        return "\\" + chr(byte)
    return chr(byte) if 0x20 < byte < 0x7F else f"\\{byte:03d}"
