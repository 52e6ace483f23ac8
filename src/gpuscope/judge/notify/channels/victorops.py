"""VictorOps, which is Splunk On-Call now: its REST integration, one incident per group of alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    PLAIN_HTTP,
    ComposedMessage,
    SecretText,
    Told,
    cut,
    join_url,
    post_json,
    read_channel_http,
    read_plain_url,
    read_secret,
    read_texts,
    url_host,
)
from gpuscope.judge.notify.channels import ChannelKind
from gpuscope.judge.notify.message_texts import Messages, default_template
from gpuscope.judge.notify.notification import FIRING, Notification

API_URL = "https://alert.victorops.com/integrations/generic/20131114/alert/"
MAX_MESSAGE_CHARACTERS = 20_480
MESSAGE_TYPES = ("INFO", "WARNING", "CRITICAL")
DEFAULTS = {
    "message_type": "CRITICAL",
    "state_message": default_template("victorops.default.state_message"),
    "entity_display_name": default_template("victorops.default.entity_display_name"),
    "monitoring_tool": default_template("victorops.default.monitoring_tool"),
}
_RESERVED = (*DEFAULTS, "routing_key", "entity_id", "entity_state")
TEXTS = """
{{ define "victorops.default.state_message" }}{{ template "__text" . }}{{ end }}
{{ define "victorops.default.entity_display_name" }}{{ template "__subject" . }}{{ end }}
{{ define "victorops.default.monitoring_tool" }}{{ template "__alertmanager" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictorOpsConfig:
    kind: ClassVar[str] = "victorops"
    api_key: SecretText
    """Not a template."""
    routing_key: str
    """A template."""
    api_url: str = API_URL
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    custom_fields: Mapping[str, str] = field(default_factory=dict)

    def target(self) -> str:
        return url_host(self.api_url)


@dataclass(frozen=True, slots=True)
class VictorOpsGlobals:
    api_url: str
    api_key: SecretText


def _read_globals(table: ConfigMapping) -> VictorOpsGlobals:
    return VictorOpsGlobals(
        read_plain_url(table, "victorops_api_url", API_URL), read_secret(table, "victorops_api_key")
    )


def _read(table: ConfigMapping, http: HttpConfig, own: VictorOpsGlobals) -> VictorOpsConfig:
    api_key, routing_key = read_secret(table, "api_key") or own.api_key, table.text("routing_key")
    if not routing_key:
        table.fail("routing_key", "is missing")
    if not api_key:
        table.fail("api_key", "is missing, and so is victorops_api_key in global")
    custom_fields = table.labels("custom_fields")
    for name in _RESERVED:
        if name in custom_fields:
            table.fail("custom_fields", f"{name} is a field of every message and cannot be given here")
    return VictorOpsConfig(
        api_key=api_key,
        routing_key=routing_key,
        api_url=read_plain_url(table, "api_url", own.api_url),
        send_resolved=table.switch("send_resolved", True),
        http=read_channel_http(table, http),
        texts=read_texts(table, DEFAULTS),
        custom_fields=custom_fields,
    )


class VictorOpsSender:
    def __init__(self, config: VictorOpsConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages
        texts = {key: messages.title(text, notification) for key, text in config.texts.items()}
        message = messages.fit(
            config.texts["state_message"], notification, lambda text: cut(text, MAX_MESSAGE_CHARACTERS)
        )
        message_type = texts["message_type"] if texts["message_type"] in MESSAGE_TYPES else "CRITICAL"
        document: dict[str, object] = {
            "message_type": message_type if notification.status == FIRING else "RECOVERY",
            "entity_id": notification.group_hash,
            "entity_display_name": texts["entity_display_name"],
            "state_message": message.text,
            "monitoring_tool": texts["monitoring_tool"],
            **{name: messages.expand(text, notification) for name, text in config.custom_fields.items()},
        }
        return ComposedMessage(dict(sorted(document.items())), message.told)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        routing_key = self._messages.expand(config.routing_key, notification)
        url = join_url(config.api_url, f"{config.api_key.reveal()}/{routing_key}")
        document, told = self.compose(notification)
        post_json(url, document, config.http, timeout_seconds)
        return told


KIND = ChannelKind(
    name="victorops",
    summary="Splunk On-Call, formerly VictorOps",
    sender=VictorOpsSender,
    read=_read,
    read_globals=_read_globals,
    texts=TEXTS,
    secret_keys=("api_key", "victorops_api_key"),
    plain_keys=("api_key",),
)
