"""What the head of a request decides: who the client is, whether its origin is allowed, which role it needs.

Forwarded headers count only from a trusted reverse proxy; a header that must be unique but is repeated is None,
and refused. Host is checked against DNS rebinding: a page of evil.example that resolves to 127.0.0.1 still
sends its own name. Sec-Fetch-Site and Origin are checked against forged requests of other sites. A change that
is not listed here requires an admin, so a route added elsewhere is closed at first.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.serve.http.connection_limits import Network, is_within, parse_address
from gpuscope.serve.http.messages import Request

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104 - for comparison only
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
QUERY_POSTS = re.compile(
    r"/api/v1/(query|query_range|query_exemplars|series|labels|label/[^/]+/values|format_query|parse_query)|/mcp"
)
"""PromQL sent in a form, as long queries are, and questions of assistants. These requests change nothing."""
_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\s:\[\]/@]+)(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443"}
WRITE_PATH: Final = "/api/v1/write"
_SENDS: Final = re.compile(r"/api/v1/write|(/alertmanager)?/api/v2/alerts")
"""Sent by programs, not by people."""
_PRIVATE_READS: Final = re.compile(r"/api/(users|audit)")
"""Who may log in and what they did: for admins only."""


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


def split_host(text: str | None) -> tuple[str, str] | None:
    """Name and port of a Host header; None if it is malformed."""
    match = _HOST.fullmatch((text or "").lower())
    if match is None:
        return None
    return match[1].strip("[]").rstrip("."), match[2] or ""


@dataclass(frozen=True, slots=True)
class HostRule:
    names: frozenset[str]
    suffixes: tuple[str, ...]
    any_address: bool
    anything: bool

    @classmethod
    def build(cls, listen_host: str, allowed: Iterable[str], own_names: Iterable[str] = ()) -> HostRule:
        """`own_names` are this machine's names; they count only for a server that listens on all addresses."""
        words = [word.lower().strip("[]").rstrip(".") for word in allowed]
        everywhere = listen_host in WILDCARD_ADDRESSES
        names = {*LOOPBACK_HOSTS, *(word for word in words if not word.startswith("*"))}
        names |= {name.lower() for name in own_names if name} if everywhere else {listen_host.lower()}
        suffixes = tuple(word[1:] for word in words if word.startswith("*."))
        return cls(frozenset(names), suffixes, everywhere, "*" in words)

    def allows(self, host: str | None) -> bool:
        split = split_host(host)
        if split is None:
            return False
        name = split[0]
        # A name can be made to resolve to any address; an address in Host is the browser's real destination.
        return (
            name in self.names
            or name.endswith(self.suffixes)
            or self.anything
            or (self.any_address and parse_address(name) is not None)
        )


def host_error(rule: HostRule, client_request: ClientRequest) -> str:
    if rule.allows(client_request.host):
        return ""
    return (
        f"this server is not configured for the host name {(client_request.host or '')[:100]!r}; "
        "add the name to --allowed-hosts to allow it"
    )


def cross_site_error(client_request: ClientRequest, *, is_page: bool = False) -> str:
    """The reason to refuse a request that another site may have caused, or ""."""
    site = (client_request.header("sec-fetch-site") or "").lower()
    if client_request.method in SAFE_METHODS:
        # A link to the page is allowed. An <img> or <iframe> that runs an expensive query is not, nor is a
        # window that another site opens on the API: each can be repeated without the user.
        is_link = (
            client_request.header("sec-fetch-mode") == "navigate"
            and client_request.header("sec-fetch-dest") == "document"
        )
        if site == "cross-site" and not (is_link and is_page):
            return "cross-site requests are not allowed"
        return ""
    if site:
        return "" if site in ("same-origin", "none") else "only this server's own page may send this"
    origin = client_request.header("origin")
    if origin == "" or is_own_origin(origin, client_request):
        return ""
    return "only this server's own page may send this"


def has_proof_of_origin(client_request: ClientRequest) -> bool:
    """True if browser headers prove that this server's page sent the request. Required where the browser
    attaches the credential by itself, such as a cookie."""
    return bool(
        client_request.header("sec-fetch-site") or client_request.header("origin")
    ) and not cross_site_error(client_request)


def is_change(client_request: ClientRequest) -> bool:
    return client_request.method not in SAFE_METHODS and not QUERY_POSTS.fullmatch(client_request.path)


def is_own_origin(origin: str | None, client_request: ClientRequest) -> bool:
    scheme, mark, rest = (origin or "").lower().partition("://")
    claimed, own = split_host(rest), split_host(client_request.host)
    if not mark or scheme not in _DEFAULT_PORTS or claimed is None or own is None:
        return False
    port = _DEFAULT_PORTS[scheme]
    return (claimed[0], claimed[1] or port) == (own[0], own[1] or port)


class ClientRole(StrEnum):
    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"

    def permits(self, required: ClientRole) -> bool:
        ranks = list(ClientRole)
        return ranks.index(self) >= ranks.index(required)


_CHANGES: Final = (
    (("POST",), re.compile(r"/api/logout"), ClientRole.VIEWER),
    (("POST",), _SENDS, ClientRole.EDITOR),
    (("POST",), re.compile(r"(/alertmanager)?/api/v2/silences"), ClientRole.EDITOR),
    (("DELETE",), re.compile(r"(/alertmanager)?/api/v2/silence/[^/]+"), ClientRole.EDITOR),
    (("POST",), re.compile(r"/api/notify/test"), ClientRole.EDITOR),
    (("POST",), re.compile(r"/api/demo/.*"), ClientRole.EDITOR),
)


def required_role(client_request: ClientRequest) -> ClientRole:
    if not is_change(client_request):
        is_private = _PRIVATE_READS.fullmatch(client_request.path) is not None
        return ClientRole.ADMIN if is_private else ClientRole.VIEWER
    for methods, path, role in _CHANGES:
        if client_request.method in methods and path.fullmatch(client_request.path):
            return role
    return ClientRole.ADMIN


def is_send(client_request: ClientRequest) -> bool:
    """True for samples and alerts that a program sends."""
    return client_request.method == "POST" and _SENDS.fullmatch(client_request.path) is not None
