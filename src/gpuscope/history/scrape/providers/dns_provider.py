"""`dns_sd_configs`: targets from SRV, A, AAAA, MX or NS records.

A name that exists without records, or does not exist, has no targets. A name whose lookup fails keeps its
targets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.provider_configs import DnsProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError, join_host_port, refresh_forever
from gpuscope.history.scrape.providers.dns_messages import DnsRecord
from gpuscope.history.scrape.providers.dns_resolver import PORT, RESOLV_CONF, read_resolver_config, resolve

log = logging.getLogger("gpuscope.scrape")
_WITH_LABELS = ("SRV", "MX", "NS")


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
