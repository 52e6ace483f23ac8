"""A channel is one entry of a receiver, `email_configs[0]` of `oncall`: its sender, its options, its requests.

A sender blocks, in the channel's own thread. It raises SendError; every other exception is a defect and counts
as an error that is not retried. A secret is shown as `<secret>` everywhere, and read where it is used: one in a
file may be rotated while the server runs.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from gpuscope.base.blocking_http import HttpResponse, open_url
from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.files import MAX_SECRET_BYTES, read_regular_text
from gpuscope.base.http_config import UNUSED, HttpConfig, basic_header, read_http_config, read_sender_config
from gpuscope.judge.notify.notification import Notification

Told = frozenset[str]
"""The fingerprints of the alerts that a message has in full: none that was cut off or left out of a list, and
none if a recipient did not get it. The idle policy acts only on warnings that were told."""
NOBODY_TOLD: Final = Told()
SECRET: Final = "<secret>"  # noqa: S105 - Alertmanager's own word
MAX_TARGET_CHARACTERS = 200


class SendError(Exception):
    """`reason` is one of Alertmanager's: clientError, serverError, contextDeadlineExceeded, other."""

    def __init__(self, message: str, *, may_retry: bool, reason: str = "other") -> None:
        super().__init__(message)
        self.may_retry = may_retry
        self.reason = reason


class Sender(Protocol):
    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        """Return when the channel has accepted the message."""
        ...


class ChannelConfig(Protocol):
    """An entry of a receiver, or a URL of `--notify`."""

    @property
    def kind(self) -> str: ...

    @property
    def send_resolved(self) -> bool: ...

    def target(self) -> str:
        """Whom it reaches, for people: mail addresses, a Slack channel, a host. Never a secret; empty if it is
        in a file, which may change while the server runs."""
        ...


class ChannelKey(NamedTuple):
    receiver: str
    kind: str
    """`webhook`, `email`, `slack`, …"""
    position: int
    """Among the receiver's channels of this kind."""

    def __str__(self) -> str:
        return f"{self.receiver}/{self.kind}[{self.position}]"


@dataclass(frozen=True, slots=True)
class Channel:
    key: ChannelKey
    sends_resolved: bool
    sender: Sender
    sent_to: str = ""
    """Whom it reaches, for people; without secrets."""


@dataclass(frozen=True, slots=True)
class SecretText:
    """A password, token or URL that grants access."""

    _text: str = field(default="", repr=False)
    path: Path | None = None

    def __bool__(self) -> bool:
        return bool(self._text) or self.path is not None

    def __str__(self) -> str:
        return SECRET

    def reveal(self) -> str:
        if self.path is None:
            return self._text
        try:
            return read_regular_text(self.path, MAX_SECRET_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SendError(f"{self.path}: {reason}", may_retry=True) from None

    def host(self) -> str:
        """Of a URL: its path may be the secret."""
        return "" if self.path else url_host(self._text)


NO_SECRET: Final = SecretText()


def url_host(url: str) -> str:
    """Host and port; empty if a template decides them."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    return f"{parts.hostname or ''}{port}" if "{{" not in parts.netloc else ""


# Reads the options that many kinds of channels have: secrets, URLs, `http_config`, `tls_config`, addresses.

PLAIN_HTTP = HttpConfig()


def finish(table: ConfigMapping) -> None:
    """Refuse the keys that nothing has read."""
    table.finish((), lambda text: None)


def read_secret(table: ConfigMapping, key: str) -> SecretText:
    """`key`, or `key_file`; empty if neither is given."""
    path, text = table.file(f"{key}_file"), table.text(key)
    if text and path is not None:
        table.fail(key, f"give it or {key}_file, not both")
    return SecretText(text, path)


def read_secret_url(table: ConfigMapping, key: str) -> SecretText:
    secret = read_secret(table, key)
    if secret.path is None and table.has(key):
        _check_url(table, key, secret.reveal())
    return secret


def read_required_url(table: ConfigMapping, key: str) -> SecretText:
    url = read_secret_url(table, key)
    if not url:
        table.fail(key, f"give {key} or {key}_file")
    return url


def read_plain_url(table: ConfigMapping, key: str, default: str) -> str:
    url = table.text(key, default)
    _check_url(table, key, url)
    return url


def _check_url(table: ConfigMapping, key: str, url: str) -> None:
    if url == SECRET or "{{" in url:  # a redacted file, which amtool reads too; a template
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_url = is_url and not any(character.isspace() for character in parts.netloc)
    except ValueError:
        is_url = False
    if not is_url:
        table.fail(key, "must be an http:// or https:// URL")  # not repeated: it may hold a token


def read_channel_http(table: ConfigMapping, default: HttpConfig) -> HttpConfig:
    """`http_config` of this table, or the global one."""
    if not table.has("http_config"):
        table.raw("http_config")
        return default
    part = table.table("http_config")
    http = read_sender_config(part)
    part.finish(UNUSED, lambda text: None)
    return http


def has_authorization(table: ConfigMapping) -> bool:
    """Whether the entry's own `http_config` has credentials that are sent as a token."""
    if not table.has("http_config"):
        return False
    http = table.table("http_config")
    return any(http.has(key) for key in ("authorization", "bearer_token", "bearer_token_file"))


def read_channel_tls(table: ConfigMapping, key: str) -> tuple[ssl.SSLContext, str] | None:
    """The context and the name to check the certificate for, which may be empty."""
    if not table.has(key):
        table.raw(key)
        return None
    wrapped = ConfigMapping({"tls_config": table.raw(key)}, table.location, table.folder, table.files)
    http = read_http_config(wrapped)
    return (http.tls, http.server_name) if http.tls is not None else None


def read_host_port(table: ConfigMapping, key: str) -> tuple[str, int] | None:
    text = table.text(key)
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        table.fail(key, f"{text!r} is not HOST:PORT, for instance mail.example.org:587")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_texts(table: ConfigMapping, defaults: Mapping[str, str]) -> dict[str, str]:
    """Templates by key."""
    return {key: table.text(key, default) for key, default in defaults.items()}


def read_text_tables(table: ConfigMapping, key: str, keys: Sequence[str]) -> tuple[dict[str, str], ...]:
    """A list of tables whose values are templates."""
    entries = []
    for entry in table.tables(key):
        entries.append({name: entry.text(name) for name in keys if entry.has(name)})
        finish(entry)
    return tuple(entries)


# Sends a request to a channel's URL, mostly a JSON document; says whether a failure is worth another attempt.
#
# A new connection for each message: they are rare. URLs are never part of an error's text, they may hold a
# token.

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
    document: Any
    """What is sent as JSON, or as fields of a form."""
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
