"""Whether a text is a URI for Go's `url.ParseRequestURI`: Alertmanager checks `generatorURL` with it.

A URI has a scheme or begins with `/`. Query and fragment may hold anything but control characters.
"""

from __future__ import annotations

import ipaddress
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST_ESCAPE = re.compile(r"%(?!25|[89A-Fa-f][0-9A-Fa-f])")
"""In a host only bytes beyond ASCII may be escaped, and `%` itself."""
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST = re.compile(r"""[A-Za-z0-9\-._~!$&'()*+,;=:\[\]<>"%\u0080-\U0010ffff]*""")
_PORT = re.compile(r"(:[0-9]*)?")


def is_request_uri(text: str) -> bool:
    if not text or _CONTROL.search(text):
        return False
    if text == "*":
        return True
    match = _SCHEME.fullmatch(text)
    if match is None and text.startswith(":"):
        return False
    scheme, rest = match.groups() if match else ("", text)
    rest = rest.partition("?")[0]
    if not rest.startswith("/"):
        return bool(scheme)
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        return _is_authority(authority) and _BAD_ESCAPE.search(slash + path) is None
    return _BAD_ESCAPE.search(rest) is None


def _is_authority(authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        return False
    if "[" in host:
        return _is_ip_literal(host)
    # Some schemes have lists of hosts, so only what follows the last colon must be a port.
    if ":" in host and not _PORT.fullmatch(host[host.rindex(":") :]):
        return False
    return _HOST.fullmatch(host) is not None and _BAD_HOST_ESCAPE.search(host) is None


def _is_ip_literal(host: str) -> bool:
    """`[fe80::1%25eth0]:80`"""
    inside, closing, port = host[1:].rpartition("]")
    address, zone_mark, zone = inside.partition("%25")
    if not host.startswith("[") or "[" in inside or not closing or not _PORT.fullmatch(port):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not zone_mark or (bool(zone) and _BAD_ESCAPE.search(zone) is None)
