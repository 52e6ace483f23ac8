"""Mattermost: an incoming webhook with attachments, one made of the entry's own keys unless it gives others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, cut, finish, read_secret_url, read_texts
from gpuscope.judge.notify.channels import (
    ChannelKind,
    JsonSender,
    WebhookUrlConfig,
    read_attachment_fields,
    read_entry,
)
from gpuscope.judge.notify.message_texts import MARKDOWN, default_template
from gpuscope.judge.notify.notification import Notification

MAX_TEXT_CHARACTERS = 16_383
PRIORITIES = ("standard", "important", "urgent")
_ATTACHMENT = (
    "fallback", "color", "pretext", "text", "author_name", "author_link", "author_icon", "title", "title_link",
    "thumb_url", "footer", "footer_icon", "image_url",
)  # fmt: skip
_MESSAGE = ("channel", "username", "icon_url", "icon_emoji", "type")
_LINKS = ("title_link", "author_link", "author_icon", "thumb_url", "footer_icon", "image_url")
DEFAULTS = {
    **dict.fromkeys((*_ATTACHMENT, *_MESSAGE), ""),
    **{
        key: default_template(f"mattermost.default.{key.replace('_', '')}")
        for key in ("username", "color", "text", "title", "title_link", "fallback")
    },
}
TEXTS = """
{{ define "mattermost.default.username" }}{{ template "__alertmanager" . }}{{ end }}
{{ define "mattermost.default.color" }}{{ if eq .Status "firing" }}danger{{ else }}good{{ end }}{{ end }}
{{ define "mattermost.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "mattermost.default.titlelink" }}{{ template "__alertmanagerURL" . }}{{ end }}
{{ define "mattermost.default.fallback" -}}
{{ template "__subject" . }} | {{ template "__alertmanagerURL" . }}
{{- end }}
{{ define "mattermost.default.text" }}{{ template "__text_markdown" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True)
class MattermostAttachment:
    texts: Mapping[str, str]
    """Templates by key."""
    fields: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class MattermostPriority:
    name: str = ""
    """A template; no priority is sent if it is empty."""
    requested_ack: bool = False
    persistent_notifications: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MattermostConfig(WebhookUrlConfig):
    kind: ClassVar[str] = "mattermost"
    own: MattermostAttachment = field(default_factory=lambda: MattermostAttachment(DEFAULTS))
    """The texts of the message, and of its attachment if there are no others."""
    attachments: tuple[MattermostAttachment, ...] = ()
    card: str = ""
    priority: MattermostPriority = MattermostPriority()

    def target(self) -> str:
        return self.own.texts["channel"] or self.url.host()


def _read_globals(table: ConfigMapping) -> SecretText:
    return read_secret_url(table, "mattermost_webhook_url")


def _read(table: ConfigMapping, http: HttpConfig, url: SecretText) -> MattermostConfig:
    url = read_secret_url(table, "webhook_url") or url
    if not url:
        table.fail("webhook_url", "is missing, and so is mattermost_webhook_url in global")
    props = table.table("props")
    card = props.text("card")
    finish(props)
    return read_entry(
        MattermostConfig,
        table,
        http,
        url=url,
        own=MattermostAttachment(read_texts(table, DEFAULTS), read_attachment_fields(table)),
        attachments=tuple(_read_attachment(entry) for entry in table.tables("attachments")),
        card=card,
        priority=_read_priority(table.table("priority")),
    )


def _read_attachment(table: ConfigMapping) -> MattermostAttachment:
    attachment = MattermostAttachment(
        read_texts(table, dict.fromkeys(_ATTACHMENT, "")), read_attachment_fields(table)
    )
    finish(table)
    return attachment


def _read_priority(table: ConfigMapping) -> MattermostPriority:
    priority = MattermostPriority(
        table.text("priority"),
        table.switch("requested_ack", False),
        table.switch("persistent_notifications", False),
    )
    finish(table)
    return priority


class MattermostSender(JsonSender[MattermostConfig]):
    retried_statuses = ()

    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages
        own = config.own
        texts = {key: messages.expand(own.texts[key], notification) for key in _MESSAGE}
        document: dict[str, object] = {key: text for key, text in texts.items() if text}
        if config.attachments:
            fitted = messages.fit(
                own.texts["text"], notification, lambda text: cut(text, MAX_TEXT_CHARACTERS), MARKDOWN
            )
            if fitted.text:
                document["text"] = fitted.text
        parts = [self._attachment(part, notification) for part in config.attachments or (own,)]
        document["attachments"] = [part.document for part in parts]
        told = frozenset[str]().union(*(part.told for part in parts))
        if config.attachments:
            told |= fitted.told
        if config.card:
            document["props"] = {"card": messages.expand(config.card, notification, MARKDOWN)}
        if config.priority.name:
            document["priority"] = self._priority(notification)
        return ComposedMessage(document, told)

    def _attachment(self, attachment: MattermostAttachment, notification: Notification) -> ComposedMessage:
        messages = self._messages
        texts = {
            key: messages.expand(attachment.texts[key], notification)
            if key in _LINKS
            else messages.title(attachment.texts[key], notification, MARKDOWN)
            for key in _ATTACHMENT
        }
        message = messages.fit(attachment.texts["text"], notification, style=MARKDOWN)
        texts["text"] = message.text
        document: dict[str, object] = {key: text for key, text in texts.items() if text}
        if attachment.fields:
            document["fields"] = [
                {
                    key: messages.expand(value, notification, MARKDOWN) if isinstance(value, str) else value
                    for key, value in entry.items()
                }
                for entry in attachment.fields
            ]
        return ComposedMessage(document, message.told)

    def _priority(self, notification: Notification) -> dict[str, object]:
        """Mattermost refuses a priority that it does not know, or that asks for more than it allows."""
        config = self._config.priority
        name = self._messages.expand(config.name, notification).lower()
        name = name if name in PRIORITIES else "standard"
        priority: dict[str, object] = {"priority": name}
        if config.requested_ack and name != "standard":
            priority["requested_ack"] = True
        if config.persistent_notifications and name == "urgent":
            priority["persistent_notifications"] = True
        return priority


KIND = ChannelKind(
    name="mattermost",
    summary="an incoming webhook of Mattermost",
    sender=MattermostSender,
    read=_read,
    read_globals=_read_globals,
    texts=TEXTS,
    secret_keys=("webhook_url", "mattermost_webhook_url"),
)
