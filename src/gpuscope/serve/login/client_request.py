"""The head of a request as the access policy uses it: client address, host, headers.

Forwarded headers count only from a reverse proxy that the settings trust. A header that must be unique but is
repeated has the value None, and the request is refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuscope.base.errors import UsageError
from gpuscope.serve.http.addresses import Network, is_within, parse_address
from gpuscope.serve.http.messages import Request


@dataclass(frozen=True, slots=True)
class ClientRequest:
    method: str
    path: str
    headers: Sequence[tuple[str, str]]  # names in lower case
    peer: str  # address at the other end of the connection
    client: str  # the forwarded client address if the peer is a trusted proxy, else the peer
    host: str | None
    secure: bool
    through_proxy: bool

    def header(self, name: str) -> str | None:
        """The value; "" if the header is absent, None if it is repeated."""
        return single_header(self.headers, name)


def single_header(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    values = [value for key, value in headers if key == name]
    if len(values) > 1:
        return None
    return values[0].strip() if values else ""


def parse_networks(words: Iterable[str], flag: str) -> tuple[Network, ...]:
    networks = []
    for word in words:
        try:
            networks.append(ipaddress.ip_network(word, strict=False))
        except ValueError:
            raise UsageError(
                f"{flag}: {word!r} is not an address or network such as 10.0.0.1 or 10.0.0.0/8"
            ) from None
    return tuple(networks)


def read_client_request(request: Request, proxies: Sequence[Network]) -> ClientRequest:
    headers, peer = request.headers, request.peer
    through_proxy = is_within(peer, proxies)
    host, secure, client = single_header(headers, "host"), request.secure, peer
    if through_proxy:
        host = single_header(headers, "x-forwarded-host") or host
        secure = secure or single_header(headers, "x-forwarded-proto") == "https"
        client = _forwarded_client(headers, proxies) or peer
    return ClientRequest(request.method, request.path, headers, peer, client, host, secure, through_proxy)


def _forwarded_client(headers: Sequence[tuple[str, str]], proxies: Sequence[Network]) -> str:
    """The last address before the trusted proxies; a client can forge everything to the left of it."""
    hops = [hop.strip() for name, value in headers if name == "x-forwarded-for" for hop in value.split(",")]
    for hop in reversed(hops[-32:]):
        if parse_address(hop) is None:
            return ""
        if not is_within(hop, proxies):
            return hop
    return ""
