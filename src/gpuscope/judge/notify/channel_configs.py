"""The entries of a receiver, one dataclass per kind of channel, with Alertmanager's names and defaults.

Texts are Go templates unless a comment says otherwise. `timeout` 0 means: until the group's next flush.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.secret_text import NO_SECRET, SecretText

PLAIN_HTTP = HttpConfig()
DEFAULT_HTML = '{{ template "email.default.html" . }}'


def default_template(name: str) -> str:
    return f'{{{{ template "{name}" . }}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    kind: ClassVar[str] = "webhook"
    url: SecretText
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    max_alerts: int = 0
    timeout: float = 0.0
    payload: Any = None
    """A document whose texts are templates; None for Alertmanager's version 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailConfig:
    kind: ClassVar[str] = "email"
    to: str
    sender: str
    """`from`, which is a keyword of Python."""
    host: str
    port: int
    send_resolved: bool = False
    hello: str = "localhost"
    auth_username: str = ""
    auth_password: SecretText = NO_SECRET
    auth_secret: SecretText = NO_SECRET
    auth_identity: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    html: str = DEFAULT_HTML
    text: str = ""
    require_tls: bool = True
    implicit_tls: bool = False
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    tls_server_name: str = ""
    has_threads: bool = False
    threads_by_day: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackConfig:
    kind: ClassVar[str] = "slack"
    url: SecretText
    token: SecretText = NO_SECRET
    """An app's token, sent as a bearer token; empty for an incoming webhook."""
    send_resolved: bool = False
    http: HttpConfig = PLAIN_HTTP
    texts: Mapping[str, str] = field(default_factory=dict)
    """The templates by key: title, text, color, …"""
    fields: tuple[Mapping[str, Any], ...] = ()
    actions: tuple[Mapping[str, Any], ...] = ()
    short_fields: bool = False
    link_names: bool = False
    mrkdwn_in: tuple[str, ...] = ("fallback", "pretext", "text")
    timeout: float = 0.0


SLACK_TEXTS = {
    "channel": "",
    "username": default_template("slack.default.username"),
    "color": default_template("slack.default.color"),
    "title": default_template("slack.default.title"),
    "title_link": default_template("slack.default.titlelink"),
    "pretext": default_template("slack.default.pretext"),
    "text": default_template("slack.default.text"),
    "message_text": "",
    "footer": default_template("slack.default.footer"),
    "fallback": default_template("slack.default.fallback"),
    "callback_id": default_template("slack.default.callbackid"),
    "icon_emoji": default_template("slack.default.iconemoji"),
    "icon_url": default_template("slack.default.iconurl"),
    "image_url": "",
    "thumb_url": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MsTeamsV2Config:
    kind: ClassVar[str] = "msteamsv2"
    url: SecretText
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    title: str = default_template("msteamsv2.default.title")
    text: str = default_template("msteamsv2.default.text")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordConfig:
    kind: ClassVar[str] = "discord"
    url: SecretText
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    title: str = default_template("discord.default.title")
    message: str = default_template("discord.default.message")
    content: str = default_template("discord.default.content")
    username: str = ""
    """Not a template."""
    avatar_url: str = ""
    """Not a template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramConfig:
    kind: ClassVar[str] = "telegram"
    bot_token: SecretText
    chat_id: SecretText
    """A number; no secret, but it may be in a file."""
    api_url: str = "https://api.telegram.org"
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    message_thread_id: int = 0
    message: str = default_template("telegram.default.message")
    disable_notifications: bool = False
    parse_mode: str = "HTML"


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDutyConfig:
    kind: ClassVar[str] = "pagerduty"
    routing_key: SecretText
    """Of the Events API v2."""
    service_key: SecretText
    """Of the older API v1, which is used if both are given, as in Alertmanager."""
    url: str = "https://events.pagerduty.com/v2/enqueue"
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    texts: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Mapping[str, str], ...] = ()
    links: tuple[Mapping[str, str], ...] = ()
    timeout: float = 0.0


PAGERDUTY_TEXTS = {
    "client": default_template("pagerduty.default.client"),
    "client_url": default_template("pagerduty.default.clientURL"),
    "description": default_template("pagerduty.default.description"),
    "source": "",
    "severity": "",
    "class": "",
    "component": "",
    "group": "",
}
PAGERDUTY_DETAILS = {
    "firing": '{{ template "pagerduty.default.instances" .Alerts.Firing }}',
    "resolved": '{{ template "pagerduty.default.instances" .Alerts.Resolved }}',
    "num_firing": "{{ .Alerts.Firing | len }}",
    "num_resolved": "{{ .Alerts.Resolved | len }}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NtfyConfig:
    """Not in Alertmanager: only from `--notify ntfy://…`."""

    kind: ClassVar[str] = "ntfy"
    url: SecretText
    """The server, without the topic."""
    topic: SecretText
    """A secret: anyone who knows the topic can read its messages."""
    token: SecretText = NO_SECRET
    username: str = ""
    password: SecretText = NO_SECRET
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseConfig:
    """Not in Alertmanager: only from `--notify` with a scheme that only apprise knows."""

    kind: ClassVar[str] = "apprise"
    url: SecretText
    scheme: str
    send_resolved: bool = True


ChannelConfig = (
    WebhookConfig
    | EmailConfig
    | SlackConfig
    | MsTeamsV2Config
    | DiscordConfig
    | TelegramConfig
    | PagerDutyConfig
    | NtfyConfig
    | AppriseConfig
)
