"""The kinds of channels: each module here has one as `KIND`, and is registered by being there.

A kind is everything about a service: its keys in an `alertmanager.yml`, its `--notify` URL, its default
messages, its row in the docs, and its sender. `read_channels` and `parse_notify_url` make configurations,
`build_receiver` the channels that send.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.errors import NotSupported, UsageError
from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import Limits
from gpuscope.judge.notify.channel import (
    MAX_TARGET_CHARACTERS,
    PLAIN_HTTP,
    Channel,
    ChannelConfig,
    ChannelKey,
    ComposedMessage,
    SecretText,
    Sender,
    SendError,
    Told,
    attempt_seconds,
    finish,
    post_json,
    read_channel_http,
    read_plain_url,
    read_secret,
    read_texts,
    url_host,
)
from gpuscope.judge.notify.message_texts import SHARED_DEFAULTS, Messages
from gpuscope.judge.notify.notification import Notification

log = logging.getLogger("gpuscope.notify")

_NO_TEMPLATES = ("http_config", "tls_config")
_SECRET_KEYS = (
    "bearer_token", "client_secret", "credentials", "key",
    "password", "proxy_url", "secret_key", "secrets", "url", "webhook_url",
)  # fmt: skip
"""Of http_config, and those that several kinds have."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class UrlForm:
    """A channel as a URL of `--notify`."""

    schemes: tuple[str, ...]
    """None: every scheme that no other kind has."""
    form: str
    """For people: `discord://WEBHOOK_ID/TOKEN`."""
    parse: Callable[[str, SplitResult], ChannelConfig | None]
    """From the URL and its parts. None if it does not have the form; ValueError with a better reason."""
    has_port: bool = False
    """The host may have a port: it is checked."""


def _no_globals(table: ConfigMapping) -> None:
    return None


def _no_check(configs: Sequence[Any], origin: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelKind:
    name: str
    """`slack` of `slack_configs`."""
    summary: str
    """For the docs, in Markdown."""
    sender: Callable[[Any, Messages], Sender]
    """From a configuration of this kind."""
    url: UrlForm | None = None
    read: Callable[[ConfigMapping, HttpConfig, Any], ChannelConfig] | None = None
    """From an entry of `<name>_configs`, the global `http_config`, and what `read_globals` returned. None if
    Alertmanager has no such receiver."""
    read_globals: Callable[[ConfigMapping], Any] = _no_globals
    """Reads its keys of `global`."""
    texts: str = ""
    """Definitions of its default messages, as Go templates."""
    secret_keys: tuple[str, ...] = ()
    """Keys whose values are shown as `<secret>`; those of http_config are known."""
    plain_keys: tuple[str, ...] = ()
    """Keys whose values are no templates."""
    check: Callable[[Sequence[Any], str], None] = _no_check
    """Raises UsageError for a configuration that cannot work, if finding out takes more than reading it."""


@cache
def channel_kinds() -> Mapping[str, ChannelKind]:
    """By name."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    )
    kinds: list[ChannelKind] = [module.KIND for module in modules]
    return {kind.name: kind for kind in kinds}


def default_texts() -> str:
    """The definitions of all default messages."""
    return "\n".join(
        (SHARED_DEFAULTS, *(kind.texts.strip() for kind in channel_kinds().values() if kind.texts))
    )


def load_messages(files: Sequence[Path] = (), limits: Limits | None = None) -> Messages:
    """The default messages, with the template files of a user."""
    return Messages(default_texts(), files, limits)


def secret_keys() -> frozenset[str]:
    return frozenset((*_SECRET_KEYS, *(key for kind in channel_kinds().values() for key in kind.secret_keys)))


@dataclass(frozen=True, slots=True)
class ChannelGlobals:
    """Defaults of all channels, from `global`."""

    http: HttpConfig
    by_kind: Mapping[str, Any]
    http_refusal: str = ""
    """Why the global `http_config` cannot be used: channels without their own cannot send."""


@dataclass(frozen=True, slots=True)
class RefusedChannel:
    """An entry that Alertmanager takes and that cannot be done here: its messages fail and say why."""

    kind: str
    reason: str
    send_resolved: bool = True

    def target(self) -> str:
        return ""

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        raise SendError(self.reason, may_retry=False)


def read_channel_globals(table: ConfigMapping) -> ChannelGlobals:
    by_kind = {name: kind.read_globals(table) for name, kind in channel_kinds().items()}
    try:
        return ChannelGlobals(read_channel_http(table, PLAIN_HTTP), by_kind)
    except NotSupported as error:
        return ChannelGlobals(PLAIN_HTTP, by_kind, str(error))


def read_channels(
    receiver: ConfigMapping, defaults: ChannelGlobals, messages: Messages
) -> tuple[ChannelConfig, ...]:
    """Every entry of a receiver, in the order of the file."""
    readable = {f"{name}_configs": kind for name, kind in channel_kinds().items() if kind.read is not None}
    configs: list[ChannelConfig] = []
    for key in sorted(readable, key=receiver.position):
        kind, documents = readable[key], receiver.raw(key)
        for entry, document in zip(receiver.tables(key), documents or (), strict=True):
            if document is None:
                receiver.fail(key, "an entry is empty")
            configs.append(_read_channel(kind, entry, defaults))
            _check_templates(entry, document, (*_NO_TEMPLATES, *kind.plain_keys), messages)
    return tuple(configs)


def _read_channel(kind: ChannelKind, entry: ConfigMapping, defaults: ChannelGlobals) -> ChannelConfig:
    assert kind.read is not None  # noqa: S101 - only those that have one are read
    try:
        config = kind.read(entry, defaults.http, defaults.by_kind[kind.name])
    except NotSupported as error:
        log.warning("%s; nothing is sent there", error)
        return RefusedChannel(kind.name, str(error))
    finish(entry)
    if defaults.http_refusal and hasattr(config, "http") and not entry.has("http_config"):
        log.warning("%s; %s sends nothing", defaults.http_refusal, entry.location)
        return RefusedChannel(kind.name, defaults.http_refusal)
    return config


def _check_templates(
    entry: ConfigMapping, document: Mapping[str, object], plain_keys: Sequence[str], messages: Messages
) -> None:
    for key, value in document.items():
        if key in plain_keys:
            continue
        for text in _texts_in(value):
            try:
                messages.check(text)
            except ValueError as error:
                entry.fail(key, f"{text[:60]!r}: {error}")


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def parse_notify_url(url: str, origin: str = "--notify") -> ChannelConfig:
    """A wrong URL is a UsageError that does not repeat its secrets."""
    scheme, separator, rest = url.partition("://")
    if not separator and url.startswith("mailto:"):
        scheme, rest = "mailto", url.removeprefix("mailto:")
        separator = "://"
    if not separator or not rest or _SCHEME.fullmatch(scheme) is None:
        raise UsageError(f"{origin}: not a URL such as https://…, mailto://… or ntfy://ntfy.sh/topic")
    origin = f"{origin} {scheme}://…"
    form = _url_form(scheme.lower())
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        if form.has_port:
            parts.port  # noqa: B018 - raises for a wrong one
    except ValueError:  # its text would repeat a part of the URL
        raise UsageError(f"{origin}: the host or the port is not valid") from None
    try:
        config = form.parse(url, parts)
    except ValueError as error:
        raise UsageError(f"{origin}: {error}") from None
    if config is None:
        raise UsageError(f"{origin}: must have the form {form.form}")
    return config


def _url_form(scheme: str) -> UrlForm:
    forms = [kind.url for kind in channel_kinds().values() if kind.url is not None]
    return next(
        (form for form in forms if scheme in form.schemes), next(form for form in forms if not form.schemes)
    )


def check_channels(configs: Sequence[ChannelConfig], origin: str) -> None:
    """Raises UsageError for channels that cannot work, before the server starts."""
    for kind in channel_kinds().values():
        kind.check([config for config in configs if config.kind == kind.name], origin)


def build_receiver(receiver: str, configs: Sequence[ChannelConfig], messages: Messages) -> list[Channel]:
    """The channels of a receiver, with the sender of each."""
    positions: Counter[str] = Counter()
    channels = []
    for config in configs:
        key = ChannelKey(receiver, config.kind, positions[config.kind])
        positions[config.kind] += 1
        kind = channel_kinds()[config.kind]
        sender = config if isinstance(config, RefusedChannel) else kind.sender(config, messages)
        target = config.target()[:MAX_TARGET_CHARACTERS]
        channels.append(Channel(key, config.send_resolved, sender, target))
    return channels


def url_segments(parts: SplitResult) -> list[str]:
    """Of a URL whose host is one of them: `discord://ID/TOKEN`."""
    return [part for part in (parts.netloc, *parts.path.split("/")) if part]


# What most kinds have in common: an entry with `http_config`, and a JSON document that is posted.


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpChannelConfig:
    kind: ClassVar[str]
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    timeout: float = 0.0
    """Of one attempt; 0 means: until the group's next flush."""

    def endpoint(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookUrlConfig(HttpChannelConfig):
    url: SecretText

    def endpoint(self) -> str:
        return self.url.reveal()

    def target(self) -> str:
        return self.url.host()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUrlConfig(HttpChannelConfig):
    api_url: str

    def endpoint(self) -> str:
        return self.api_url

    def target(self) -> str:
        return url_host(self.api_url)


Config = TypeVar("Config", bound=HttpChannelConfig)


def read_entry(config: type[Config], table: ConfigMapping, http: HttpConfig, **given: Any) -> Config:
    """An entry of a receiver: each field that is not given is the key of its name, with the field's default, if
    it is a text, a switch, a number or a mapping of templates."""
    values = {"http": read_channel_http(table, http), "timeout": 0.0, **given}
    for field in fields(config):
        if field.name in values:
            continue
        default: Any = field.default if field.default_factory is MISSING else field.default_factory()
        if isinstance(default, bool):
            values[field.name] = table.switch(field.name, default)
        elif isinstance(default, int):
            values[field.name] = table.count(field.name, default)
        elif isinstance(default, str):
            values[field.name] = table.text(field.name, default)
        elif field.name == "texts":
            values[field.name] = read_texts(table, default)
    return config(**values)


@dataclass(frozen=True, slots=True)
class ApiGlobals:
    """What an entry may leave out if `global` has it: `KIND_api_url`, and secrets such as `KIND_api_key`."""

    kind: str
    api_url: str
    secrets: Mapping[str, SecretText]

    @classmethod
    def reader(cls, kind: str, api_url: str, *secrets: str) -> Callable[[ConfigMapping], ApiGlobals]:
        def read(table: ConfigMapping) -> ApiGlobals:
            url = read_plain_url(table, f"{kind}_api_url", api_url)
            return cls(kind, url, {key: read_secret(table, f"{kind}_{key}") for key in secrets})

        return read

    def read_url(self, table: ConfigMapping) -> str:
        return read_plain_url(table, "api_url", self.api_url)

    def read_secret(self, table: ConfigMapping, key: str) -> SecretText:
        secret = read_secret(table, key) or self.secrets[key]
        if not secret:
            table.fail(key, f"is missing, and so is {self.kind}_{key} in global")
        return secret


def read_attachment_fields(table: ConfigMapping, *, are_required: bool = True) -> tuple[dict[str, Any], ...]:
    """`fields` of Slack and its relatives: title, value and, if it is given, short."""
    entries = []
    for part in table.tables("fields"):
        entry: dict[str, Any] = {key: part.text(key) for key in ("title", "value")}
        for key, value in entry.items():
            if are_required and not value:
                part.fail(key, "is missing")
        if part.has("short"):
            entry["short"] = part.switch("short", False)
        finish(part)
        entries.append(entry)
    return tuple(entries)


class JsonSender(Generic[Config]):
    """Posts the document of `compose`; a kind overrides what is different."""

    retried_statuses: tuple[int, ...] = (429,)

    def __init__(self, config: Config, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def compose(self, notification: Notification) -> ComposedMessage:
        raise NotImplementedError

    def url(self, notification: Notification) -> str:
        return self._config.endpoint()

    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def check_answer(self, body: bytes) -> None:
        """Raises SendError for an answer that refuses the message although its status is 2xx."""

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        document, told = self.compose(notification)
        response = post_json(
            self.url(notification),
            document,
            self._config.http,
            attempt_seconds(timeout_seconds, self._config.timeout),
            retried_statuses=self.retried_statuses,
            headers=self.headers(),
        )
        self.check_answer(response.body)
        return told


def bearer_header(token: SecretText) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token.reveal()}"),) if token else ()
