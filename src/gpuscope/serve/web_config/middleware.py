"""Handler wrappers of a web configuration file: a rate limit shared by all clients, and response headers."""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuscope.base.errors import UsageError
from gpuscope.serve.http.messages import Handler, Header, Request, Response, text

_GO_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_GO_PART = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


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
