"""Which proxy a request goes through: as a configuration file says, else as the environment says.

`proxy_url` and `no_proxy` are Prometheus' keys, HTTP_PROXY, HTTPS_PROXY and NO_PROXY the variables that most
programs read; both lists of exceptions mean what they mean to Go's programs. A request to this machine itself
never goes through a proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SOCKS = ("socks5", "socks5h")
DEFAULT_PORTS = {"http": 80, "socks5": 1080, "socks5h": 1080}


class ProxyServer(NamedTuple):
    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str = ""
    connect_headers: tuple[tuple[str, str], ...] = ()
    """Sent only with the request for a tunnel."""


@dataclass(frozen=True, slots=True)
class ProxyRules:
    http: str = field(default="", repr=False)
    """The proxy for http:// URLs; it may hold a password."""
    https: str = field(default="", repr=False)
    exceptions: str = ""
    connect_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def server_for(self, scheme: str, host: str, port: int) -> ProxyServer | None:
        """Raises OSError for a proxy that cannot be used."""
        url = self.https if scheme == "https" else self.http
        if not url or _is_this_machine(host) or _is_excepted(host.lower().rstrip("."), port, self.exceptions):
            return None
        try:
            server = parse_proxy(url)
        except (ValueError, NotImplementedError) as error:
            raise OSError(f"the proxy cannot be used: {error}") from None
        return server._replace(connect_headers=self.connect_headers)


def parse_proxy(url: str) -> ProxyServer:
    """Raises ValueError, or NotImplementedError for a proxy that is reached by TLS. Their texts do not repeat
    the URL: it may hold a password."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("not a URL") from None
    if parts.scheme not in DEFAULT_PORTS:
        kind = NotImplementedError if parts.scheme == "https" else ValueError
        raise kind(f"only http:// and socks5:// proxies are supported, not {parts.scheme[:20]}://")
    if not host:
        raise ValueError("its URL has no host")
    user = None if parts.username is None else unquote(parts.username)
    return ProxyServer(
        parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], user, unquote(parts.password or "")
    )


def environment_rules(environment: Mapping[str, str]) -> ProxyRules:
    def variable(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    # In a CGI program HTTP_PROXY is a header of the request.
    http = "" if environment.get("REQUEST_METHOD") else variable("HTTP_PROXY")
    return ProxyRules(http, variable("HTTPS_PROXY"), variable("NO_PROXY"))


def _is_this_machine(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    address = _address(host)
    for entry in exceptions.lower().split(","):
        name = entry.strip()
        if name == "*":
            return True
        if address is not None and _is_in_network(address, name):
            return True
        name, colon, only_port = name.rpartition(":") if _has_port(name) else (name, "", "")
        name = name.strip("[]")
        if not name or (colon and only_port != str(port)):
            continue
        if address is not None:
            if _address(name) == address:
                return True
        elif name.startswith((".", "*.")):
            if host.endswith(name.removeprefix("*")):
                return True
        elif host == name or host.endswith(f".{name}"):
            return True
    return False


def _has_port(name: str) -> bool:
    host, colon, port = name.rpartition(":")
    return bool(colon) and port.isdigit() and (":" not in host or host.endswith("]"))


def _is_in_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, text: str) -> bool:
    if "/" not in text:
        return False
    try:
        return address in ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
