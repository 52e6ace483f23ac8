"""Pushover: a push message to a phone. Everything is in the query of the request, as in Alertmanager."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlencode

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, Told, cut, read_secret, request
from gpuscope.judge.notify.channels import ApiUrlConfig, ChannelKind, JsonSender, read_entry
from gpuscope.judge.notify.message_texts import HTML, PLAIN, FittedText, default_template
from gpuscope.judge.notify.notification import Notification

API_URL = "https://api.pushover.net/1/messages.json"
MAX_TITLE_CHARACTERS = 250
MAX_MESSAGE_CHARACTERS = 1024
MAX_URL_CHARACTERS = 512
NO_TEXT = "(no details)"
"""Pushover refuses an empty message."""
DEFAULTS = {
    "title": default_template("pushover.default.title"),
    "message": default_template("pushover.default.message"),
    "url": default_template("pushover.default.url"),
    "url_title": "",
    "device": "",
    "sound": "",
    "priority": '{{ if eq .Status "firing" }}2{{ else }}0{{ end }}',
}
TEXTS = """
{{ define "pushover.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "pushover.default.message" }}{{ template "__text" . }}{{ end }}
{{ define "pushover.default.url" }}{{ template "__alertmanagerURL" . }}{{ end }}
"""
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(ns|us|µs|ms|s|m|h)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushoverConfig(ApiUrlConfig):
    kind: ClassVar[str] = "pushover"
    user_key: SecretText
    """A template."""
    token: SecretText
    """A template."""
    api_url: str = API_URL
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    retry: float = 60.0
    expire: float = 3600.0
    ttl: float = 0.0
    is_html: bool = False
    is_monospace: bool = False


def _parse_duration(value: object) -> float:
    """Seconds of a duration of Go: `1m30s` or `1.5h`, but not `1d`."""
    text = str(value)
    sign, digits = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if digits == "0":
        return 0.0
    parts = _DURATION_PART.findall(digits)
    if not parts or "".join(number + unit for number, unit in parts) != digits:
        raise ValueError(f"{text!r} is not a duration such as 90s or 1h30m")
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> PushoverConfig:
    user_key, token = read_secret(table, "user_key"), read_secret(table, "token")
    for key, secret in (("user_key", user_key), ("token", token)):
        if not secret:
            table.fail(key, f"give {key} or {key}_file")
    is_html, is_monospace = table.switch("html", False), table.switch("monospace", False)
    if is_html and is_monospace:
        table.fail("monospace", "give it or html, not both")
    return read_entry(
        PushoverConfig,
        table,
        http,
        api_url=API_URL,
        user_key=user_key,
        token=token,
        retry=table.parsed("retry", 60.0, _parse_duration),
        expire=table.parsed("expire", 3600.0, _parse_duration),
        ttl=table.parsed("ttl", 0.0, _parse_duration),
        is_html=is_html,
        is_monospace=is_monospace,
    )


class PushoverSender(JsonSender[PushoverConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        """The parameters of the query, without the keys."""
        config = self._config
        texts = {key: self._messages.title(text, notification) for key, text in config.texts.items()}
        message = self._message(notification)
        parameters = {
            "title": cut(texts["title"], MAX_TITLE_CHARACTERS),
            "message": message.text.strip() or NO_TEXT,
            "url": cut(texts["url"], MAX_URL_CHARACTERS),
            "url_title": texts["url_title"],
            "priority": texts["priority"],
            "retry": str(int(config.retry)),
            "expire": str(int(config.expire)),
            "device": texts["device"],
            "sound": texts["sound"],
        }
        if config.is_html:
            parameters["html"] = "1"
        if config.is_monospace:
            parameters["monospace"] = "1"
        if config.ttl >= 1:
            parameters["ttl"] = str(int(config.ttl))
        return ComposedMessage(parameters, message.told)

    def _message(self, notification: Notification) -> FittedText:
        def shorten(text: str) -> str:
            return cut(text, MAX_MESSAGE_CHARACTERS)

        style = HTML if self._config.is_html else PLAIN
        return self._messages.fit(self._config.texts["message"], notification, shorten, style)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        parameters, told = self.compose(notification)
        for name, secret in (("token", config.token), ("user", config.user_key)):
            parameters[name] = self._messages.expand(secret.reveal(), notification)
        url = f"{config.api_url}?{urlencode(sorted(parameters.items()))}"
        request(url, b"", config.http, timeout_seconds, content_type="text/plain")
        return told


KIND = ChannelKind(
    name="pushover",
    summary="a push message of Pushover",
    sender=PushoverSender,
    read=_read,
    texts=TEXTS,
    secret_keys=("user_key", "token"),
)
