"""Discord: one embed per message. Mentions are switched off: `@everyone` in a label must notify nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, cut, read_required_url
from gpuscope.judge.notify.channels import (
    ChannelKind,
    JsonSender,
    UrlForm,
    WebhookUrlConfig,
    read_entry,
    url_segments,
)
from gpuscope.judge.notify.message_texts import MARKDOWN, default_template
from gpuscope.judge.notify.notification import FIRING, Notification

MAX_TITLE_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 4096
MAX_CONTENT_CHARACTERS = 2000
RED, GREEN = 0x992D22, 0x2ECC71
TITLE = default_template("discord.default.title")
MESSAGE = default_template("discord.default.message")
CONTENT = default_template("discord.default.content")
TEXTS = """
{{ define "discord.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "discord.default.message" }}{{ template "__text_markdown" . }}{{ end }}
{{ define "discord.default.content" }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordConfig(WebhookUrlConfig):
    kind: ClassVar[str] = "discord"
    title: str = TITLE
    message: str = MESSAGE
    content: str = CONTENT
    username: str = ""
    """Not a template."""
    avatar_url: str = ""
    """Not a template."""


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> DiscordConfig:
    return read_entry(DiscordConfig, table, http, url=read_required_url(table, "webhook_url"))


def _parse_url(url: str, parts: SplitResult) -> DiscordConfig | None:
    words = url_segments(parts)
    if len(words) != 2:
        return None
    return DiscordConfig(url=SecretText("https://discord.com/api/webhooks/" + "/".join(words)))


class DiscordSender(JsonSender[DiscordConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages
        message = messages.fit(
            config.message, notification, lambda text: cut(text, MAX_DESCRIPTION_CHARACTERS), MARKDOWN
        )
        embed = {
            "title": cut(messages.title(config.title, notification, MARKDOWN), MAX_TITLE_CHARACTERS),
            "description": message.text,
            "color": RED if notification.status == FIRING else GREEN,
        }
        content = messages.expand(config.content, notification, MARKDOWN)
        document: dict[str, object] = {
            "content": cut(content, MAX_CONTENT_CHARACTERS),
            "embeds": [embed],
            "allowed_mentions": {"parse": []},
        }
        if config.username:
            document["username"] = config.username
        if config.avatar_url:
            document["avatar_url"] = config.avatar_url
        return ComposedMessage(document, message.told)


KIND = ChannelKind(
    name="discord",
    summary="a webhook of Discord",
    sender=DiscordSender,
    read=_read,
    url=UrlForm(("discord",), "discord://WEBHOOK_ID/TOKEN", _parse_url),
    texts=TEXTS,
)
