"""Which names this server answers to, and which web sites may make a browser ask it.

Against DNS rebinding: a page of evil.example whose name was pointed at 127.0.0.1 still sends its own name as
Host. Against forged requests: browsers say where a request comes from, in Sec-Fetch-Site or Origin, and a page
cannot change that. Programs (Grafana, Prometheus, curl) send neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuscope.server.http.addresses import parse_address
from gpuscope.server.login.client_request import ClientRequest

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
READING_POSTS = re.compile(
    r"/api/v1/(query|query_range|query_exemplars|series|labels|label/[^/]+/values|format_query|parse_query)"
)
"""PromQL sent as a form, because it is too long for an address: it changes nothing."""

_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\s:\[\]/@]+)(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def split_host(text: str | None) -> tuple[str, str] | None:
    """Name and port of a Host header; None if it is not one."""
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
        """`own_names` are this machine's; they count only for a server that listens on every address."""
        words = [word.lower().strip("[]").rstrip(".") for word in allowed]
        everywhere = listen_host in EVERY_ADDRESS
        names = {*LOOPBACK_HOSTS, *(word for word in words if not word.startswith("*"))}
        names |= {name.lower() for name in own_names if name} if everywhere else {listen_host.lower()}
        suffixes = tuple(word[1:] for word in words if word.startswith("*."))
        return cls(frozenset(names), suffixes, everywhere, "*" in words)

    def allows(self, host: str | None) -> bool:
        split = split_host(host)
        if split is None:
            return False
        name = split[0]
        # A name can be pointed elsewhere by its owner; an address in Host is where the browser really went.
        return (
            name in self.names
            or name.endswith(self.suffixes)
            or self.anything
            or (self.any_address and parse_address(name) is not None)
        )


def host_fault(rule: HostRule, asked: ClientRequest) -> str:
    if rule.allows(asked.host):
        return ""
    return (
        f"this server does not answer to the name {(asked.host or '')[:100]!r}; "
        "if it should, add the name to --allowed-hosts"
    )


def forgery_fault(asked: ClientRequest, *, is_page: bool = False) -> str:
    """Why this looks like another site's doing, or nothing; `is_page` if a file of our page is asked for."""
    site = (asked.header("sec-fetch-site") or "").lower()
    if asked.method in SAFE_METHODS:
        # A link to our page is fine. An <img> or <iframe> of another site that runs our costliest query is not,
        # nor is a window it opens on the API: each can be repeated without the user.
        is_link = asked.header("sec-fetch-mode") == "navigate" and asked.header("sec-fetch-dest") == "document"
        if site == "cross-site" and not (is_link and is_page):
            return "another site may not make a browser ask here"
        return ""
    if site:
        return "" if site in ("same-origin", "none") else "only this server's own page may send this"
    origin = asked.header("origin")
    if origin == "" or is_own_origin(origin, asked):
        return ""
    return "only this server's own page may send this"


def has_proof_of_origin(asked: ClientRequest) -> bool:
    """That a browser said it, and it was us: for what a browser attaches by itself, a cookie for one."""
    return bool(asked.header("sec-fetch-site") or asked.header("origin")) and not forgery_fault(asked)


def changes_something(asked: ClientRequest) -> bool:
    return asked.method not in SAFE_METHODS and not READING_POSTS.fullmatch(asked.path)


def is_own_origin(origin: str | None, asked: ClientRequest) -> bool:
    scheme, mark, rest = (origin or "").lower().partition("://")
    claimed, own = split_host(rest), split_host(asked.host)
    if not mark or scheme not in _DEFAULT_PORTS or claimed is None or own is None:
        return False
    port = _DEFAULT_PORTS[scheme]
    return (claimed[0], claimed[1] or port) == (own[0], own[1] or port)
