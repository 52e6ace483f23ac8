"""VictorOps, which is Splunk On-Call now: its REST integration, one incident per group of alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, cut, join_url
from gpuscope.judge.notify.channels import ApiGlobals, ApiUrlConfig, ChannelKind, JsonSender, read_entry
from gpuscope.judge.notify.message_texts import default_template
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
class VictorOpsConfig(ApiUrlConfig):
    kind: ClassVar[str] = "victorops"
    api_key: SecretText
    """Not a template."""
    routing_key: str
    """A template."""
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    custom_fields: Mapping[str, str] = field(default_factory=dict)


def _read(table: ConfigMapping, http: HttpConfig, own: ApiGlobals) -> VictorOpsConfig:
    if not table.text("routing_key"):
        table.fail("routing_key", "is missing")
    custom_fields = table.labels("custom_fields")
    for name in _RESERVED:
        if name in custom_fields:
            table.fail("custom_fields", f"{name} is a field of every message and cannot be given here")
    return read_entry(
        VictorOpsConfig,
        table,
        http,
        api_key=own.read_secret(table, "api_key"),
        routing_key=table.text("routing_key"),
        api_url=own.read_url(table),
        custom_fields=custom_fields,
    )


class VictorOpsSender(JsonSender[VictorOpsConfig]):
    retried_statuses = ()

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

    def url(self, notification: Notification) -> str:
        config = self._config
        routing_key = self._messages.expand(config.routing_key, notification)
        return join_url(config.api_url, f"{config.api_key.reveal()}/{routing_key}")


KIND = ChannelKind(
    name="victorops",
    summary="Splunk On-Call, formerly VictorOps",
    sender=VictorOpsSender,
    read=_read,
    read_globals=ApiGlobals.reader("victorops", API_URL, "api_key"),
    texts=TEXTS,
    secret_keys=("api_key", "victorops_api_key"),
    plain_keys=("api_key",),
)
