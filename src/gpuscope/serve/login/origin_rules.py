"""Rules on the Host header and on the origin of browser requests.

Host, against DNS rebinding: if evil.example resolves to 127.0.0.1, a page from there still sends its own name
as Host. Origin, against cross-site request forgery: browsers send Sec-Fetch-Site or Origin, which a page cannot
change. Programs (Grafana, Prometheus, curl) send neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuscope.serve.http.addresses import parse_address
from gpuscope.serve.login.client_request import ClientRequest

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104 - for comparison only

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
QUERY_POSTS = re.compile(
    r"/api/v1/(query|query_range|query_exemplars|series|labels|label/[^/]+/values|format_query|parse_query)|/mcp"
)
"""PromQL sent in a form, as long queries are, and questions of assistants. These requests change nothing."""

_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\s:\[\]/@]+)(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


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
