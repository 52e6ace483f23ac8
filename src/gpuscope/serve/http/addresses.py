"""Client addresses: parsed once, compared with networks, and grouped for limits.

An address comes from a socket or, behind a trusted proxy, from a header, which is untrusted text. Text that is
not an address parses to None. An IPv4 address mapped into IPv6 counts as IPv4.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

MAX_ADDRESS_LENGTH = 45  # IPv6 text that ends in a dotted IPv4 address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_within(address: str, networks: Sequence[Network]) -> bool:
    parsed = parse_address(address) if networks else None
    return parsed is not None and any(parsed in network for network in networks)


def parse_address(text: str) -> Address | None:
    bare = text.partition("%")[0]
    return parse_short_address(bare) if len(bare) <= MAX_ADDRESS_LENGTH else None


@lru_cache(maxsize=1024)
def parse_short_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:10.0.0.1 on a dual-stack socket
    return mapped or address


def limit_key(address: str) -> str:
    """The key under which limits count an address: IPv4 by address, IPv6 by /64, which one customer owns."""
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed) if parsed else address[:64]
