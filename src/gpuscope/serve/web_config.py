"""An exporter-toolkit web configuration file: TLS, passwords, response headers and a rate limit.

The format is that of Prometheus' own exporters. An unknown key is an error, because an ignored security setting
protects nobody. The file is read once, at start. YAML, bcrypt and OpenSSL are loaded only if a file is given.
"""

from __future__ import annotations

import logging
import re
import reprlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import Limits
from gpuscope.serve.http.messages import Handler, Header, Request, RequestGuard, Response, text

if TYPE_CHECKING:
    from gpuscope.serve.http.tls import TlsConfig


_GO_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_GO_PART = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
log = logging.getLogger("gpuscope")
SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that exporter-toolkit supports, each with its allowed values; an empty tuple allows any."""
Table = Mapping[Any, Any]


def parse_go_duration(value: object) -> float:
    """Seconds of a Go duration such as "1m30s". Go reads a bare number as nanoseconds; only 0 is accepted."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    parts = _GO_PART.findall(value) if isinstance(value, str) and len(value) <= 100 else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise UsageError(
            f"rate_limit.interval must be a duration such as 100ms or 1s, not {reprlib.repr(value)}"
        )
    return float(sum(float(number) * _GO_UNITS[unit] for number, unit in parts))


@dataclass(slots=True)
class TokenBucket:
    """Allows `burst` requests at once, then one per `interval`, as golang.org/x/time/rate does."""

    interval: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _tokens: float = -1.0
    _counted_at: float = 0.0

    def allows(self) -> bool:
        now = self.clock()
        gained = self.burst if self._tokens < 0 else (now - self._counted_at) / self.interval
        self._tokens = min(float(self.burst), max(self._tokens, 0.0) + gained)
        self._counted_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def with_rate_limit(handler: Handler, bucket: TokenBucket) -> Handler:
    async def handle(request: Request) -> Response:
        if not bucket.allows():
            return text("Too Many Requests", 429)
        return await handler(request)

    return handle


def with_headers(handler: Handler, headers: tuple[Header, ...]) -> Handler:
    """Headers that the handler sets take precedence, as with Go's Header().Set."""

    async def handle(request: Request) -> Response:
        response = await handler(request)
        # Every response has x-content-type-options.
        own = {"x-content-type-options", *(name.lower() for name, _ in response.headers)}
        added = tuple(header for header in headers if header[0] not in own)
        return replace(response, headers=(*response.headers, *added))

    return handle


@dataclass(frozen=True, slots=True)
class WebConfig:
    tls: TlsConfig | None = None
    guard: RequestGuard | None = None
    headers: tuple[Header, ...] = ()
    bucket: TokenBucket | None = None

    def wrap(self, handler: Handler) -> Handler:
        """Adds the rate limit and the headers. As in exporter-toolkit, a request over the limit is refused
        before any other check, and without the headers."""
        if self.headers:
            handler = with_headers(handler, self.headers)
        return with_rate_limit(handler, self.bucket) if self.bucket is not None else handler


def load_web_config(path: Path, limits: Limits | None = None) -> WebConfig:
    from gpuscope.serve.http.tls import TLS_KEYS, build_tls
    from gpuscope.serve.login.password_checks import password_guard

    table = _mapping(_read_yaml(path), path, "the file")
    _refuse_unknown(table, SECTIONS, path, "")
    tls = _section(table, "tls_server_config", path)
    users = _section(table, "basic_auth_users", path)
    http = _section(table, "http_server_config", path)
    _refuse_unknown(tls, TLS_KEYS, path, "tls_server_config")
    _refuse_unknown(http, ("http2", "headers"), path, "http_server_config")
    if _boolean(http.get("http2", False), path, "http_server_config.http2"):
        log.warning("web config file %s: http2 is not supported; clients get HTTP/1.1", path)
    try:
        return WebConfig(
            build_tls(tls, path.parent) if tls else None,
            password_guard(users, limits or Limits()) if users else None,
            _headers(_section(http, "headers", path)),
            _bucket(_section(table, "rate_limit", path), path),
        )
    except UsageError as error:
        raise UsageError(f"web config file {path}: {error}") from None


def _read_yaml(path: Path) -> object:
    from gpuscope.base.yaml_file import load_yaml

    try:
        return load_yaml(path, typed=True) or {}
    except UsageError as error:
        raise UsageError(f"web config file {error}") from None


def _mapping(value: object, path: Path, name: str) -> Table:
    if not isinstance(value, dict):
        raise UsageError(f"web config file {path}: {name} must be a mapping")
    return value


def _section(table: Table, name: str, path: Path) -> Table:
    return _mapping(table.get(name) or {}, path, name)


def _refuse_unknown(table: Table, known: tuple[str, ...], path: Path, section: str) -> None:
    for key in table:
        if key not in known:
            where = f"key {reprlib.repr(key)} in {section}" if section else f"section {reprlib.repr(key)}"
            raise UsageError(f"web config file {path}: unknown {where}; known are {', '.join(known)}")


def _boolean(value: object, path: Path, name: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"web config file {path}: {name} must be true or false, not {reprlib.repr(value)}")
    return value


def _headers(table: Table) -> tuple[Header, ...]:
    headers = []
    for name, value in table.items():
        if name not in HEADERS:
            raise UsageError(
                f"HTTP header {reprlib.repr(name)} cannot be configured; supported are {', '.join(HEADERS)}"
            )
        if isinstance(value, (dict, list, set)):
            raise UsageError(f"{name} must be a string, not {reprlib.repr(value)}")
        text = "" if value is None else str(value)
        if HEADERS[name] and text not in HEADERS[name]:
            raise UsageError(f"{name} must be one of {', '.join(HEADERS[name])}, not {text!r}")
        if not text.isprintable():
            raise UsageError(f"{name} {text!r}: a header is one line of printable text")
        if text:  # exporter-toolkit: "unset if blank"
            headers.append((name.lower(), text))
    return tuple(headers)


def _bucket(table: Table, path: Path) -> TokenBucket | None:
    _refuse_unknown(table, ("interval", "burst"), path, "rate_limit")
    interval = parse_go_duration(table.get("interval", 0))
    burst = table.get("burst", 0)
    if isinstance(burst, bool) or not isinstance(burst, int) or burst < 0:
        raise UsageError(f"rate_limit.burst must be a number of requests, not {reprlib.repr(burst)}")
    if not interval:
        return None
    if not burst:
        raise UsageError("rate_limit.burst is 0: every request would be refused; set it to 1 or more")
    return TokenBucket(interval, burst)
