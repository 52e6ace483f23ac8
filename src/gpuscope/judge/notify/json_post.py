"""Sends a request to a channel's URL, mostly a JSON document; says whether a failure is worth another attempt.

A new connection for each message: they are rare. URLs are never part of an error's text, they may hold a token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from gpuscope.base.blocking_http import HttpResponse, open_url
from gpuscope.base.http_config import HttpConfig, basic_header
from gpuscope.judge.notify.channel import SendError, Told

MAX_RESPONSE_BYTES = 1 << 20
MAX_ATTEMPT_SECONDS = 30.0
MAX_QUOTED_CHARACTERS = 200


def encode(document: object) -> bytes:
    """As Go's encoder writes it: `<`, `>` and `&` escaped, a line end behind it."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    for character, escaped in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(character, escaped)
    return text.encode("utf-8", "replace") + b"\n"


def post_json(
    url: str,
    document: object,
    http: HttpConfig,
    timeout_seconds: float,
    *,
    retried_statuses: Collection[int] = (),
    headers: tuple[tuple[str, str], ...] = (),
) -> HttpResponse:
    """As `request`, with a JSON document."""
    return request(
        url, encode(document), http, timeout_seconds, retried_statuses=retried_statuses, headers=headers
    )


def request(
    url: str,
    body: bytes,
    http: HttpConfig,
    timeout_seconds: float,
    *,
    method: str = "POST",
    content_type: str = "application/json",
    retried_statuses: Collection[int] = (),
    headers: tuple[tuple[str, str], ...] = (),
) -> HttpResponse:
    """SendError unless the answer is 2xx; 5xx and `retried_statuses` may be tried again."""
    own = (("content-type", content_type), *headers) if content_type else headers
    response = _send(method, url, body, http, min(timeout_seconds, MAX_ATTEMPT_SECONDS), own)
    if 200 <= response.status < 300:
        return response
    is_server_error = response.status >= 500
    raise SendError(
        f"HTTP status {response.status}{_quoted(response.body)}",
        may_retry=is_server_error or response.status in retried_statuses,
        reason="serverError" if is_server_error else "clientError" if response.status >= 400 else "other",
    )


def _send(
    method: str,
    url: str,
    body: bytes,
    http: HttpConfig,
    timeout_seconds: float,
    headers: tuple[tuple[str, str], ...],
) -> HttpResponse:
    # A channel's own credentials come before those of http_config, as in Alertmanager.
    own = list(headers)
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(url)
        if parts.username is not None:
            own.append(basic_header(unquote(parts.username), unquote(parts.password or "")))
        seconds = max(timeout_seconds, 0.001)
        client, target = open_url(
            url, http, timeout_seconds=seconds, max_body_bytes=MAX_RESPONSE_BYTES, headers=own
        )
    except ValueError:
        raise SendError("the channel's URL is not an http:// or https:// URL", may_retry=False) from None
    try:
        with client:
            return client.request(method, _ascii(target), (), body)
    except TimeoutError:
        raise SendError("no answer in time", may_retry=True, reason="contextDeadlineExceeded") from None
    except OSError as error:
        raise SendError(error.strerror or str(error) or type(error).__name__, may_retry=True) from None


def _ascii(target: str) -> str:
    """A URL with letters beyond ASCII, or with a space, cannot be sent as it is."""
    return "".join(c if "!" <= c <= "~" else "".join(f"%{byte:02X}" for byte in c.encode()) for c in target)


def _quoted(answer: bytes) -> str:
    text = " ".join(answer[:1000].decode("utf-8", "replace").split())[:MAX_QUOTED_CHARACTERS]
    return f": {text}" if text else ""


class ComposedMessage(NamedTuple):
    document: dict[str, object]
    told: Told


def cut(text: str, most: int) -> str:
    """At most so many characters, the last of them `…` if some are missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def cut_bytes(text: str, most: int) -> str:
    """As `cut`, for a limit in bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= most else encoded[: most - 3].decode("utf-8", "ignore") + "…"


def join_url(url: str, path: str, query: Mapping[str, str] | None = None) -> str:
    """The URL with more of a path, and with more parameters in the order of their names."""
    parts = urlsplit(url)
    pairs = sorted({**dict(parse_qsl(parts.query, keep_blank_values=True)), **(query or {})}.items())
    whole = f"{parts.path.rstrip('/')}/{quote(path, safe='/$&+,:;=@')}"
    return urlunsplit(parts._replace(path=whole, query=urlencode(pairs)))


def attempt_seconds(timeout_seconds: float, configured: float) -> float:
    return min(timeout_seconds, configured) if configured else timeout_seconds
