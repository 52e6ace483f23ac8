"""The head of a request as the access policy sees it: client address, host, headers.

Behind a reverse proxy that the settings name, the forwarded headers are believed; from anybody else they are
text. A header that must be single and is not counts as hostile: its value is None.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuscope.errors import UsageError
from gpuscope.server.http.addresses import Network, is_within, parse_address
from gpuscope.server.http.messages import Request


@dataclass(frozen=True, slots=True)
class ClientRequest:
    method: str
    path: str
    headers: Sequence[tuple[str, str]]  # names in lower case
    peer: str  # who holds the other end of the connection
    client: str  # who asked, if the peer is a proxy we believe; else the peer
    host: str | None
    secure: bool
    through_proxy: bool

    def header(self, name: str) -> str | None:
        """The value, "" when there is none, None when there are several."""
        return single(self.headers, name)


def single(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    values = [value for key, value in headers if key == name]
    if len(values) > 1:
        return None
    return values[0].strip() if values else ""


def parse_networks(words: Iterable[str], flag: str) -> tuple[Network, ...]:
    found = []
    for word in words:
        try:
            found.append(ipaddress.ip_network(word, strict=False))
        except ValueError:
            raise UsageError(
                f"{flag}: {word!r} is not an address or network such as 10.0.0.1 or 10.0.0.0/8"
            ) from None
    return tuple(found)


def read_head(request: Request, proxies: Sequence[Network]) -> ClientRequest:
    headers, peer = request.headers, request.peer
    through_proxy = is_within(peer, proxies)
    host, secure, who = single(headers, "host"), request.secure, peer
    if through_proxy:
        host = single(headers, "x-forwarded-host") or host
        secure = secure or single(headers, "x-forwarded-proto") == "https"
        who = _forwarded_client(headers, proxies) or peer
    return ClientRequest(request.method, request.path, headers, peer, who, host, secure, through_proxy)


def _forwarded_client(headers: Sequence[tuple[str, str]], proxies: Sequence[Network]) -> str:
    """The last address before our own proxies; what stands further left, the client may have written."""
    hops = [hop.strip() for name, value in headers if name == "x-forwarded-for" for hop in value.split(",")]
    for hop in reversed(hops[-32:]):
        if parse_address(hop) is None:
            return ""
        if not is_within(hop, proxies):
            return hop
    return ""
