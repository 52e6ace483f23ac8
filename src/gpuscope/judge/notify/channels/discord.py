"""Discord: one embed per message. Mentions are switched off: `@everyone` in a label must notify nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    PLAIN_HTTP,
    ComposedMessage,
    SecretText,
    Told,
    cut,
    post_json,
    read_channel_http,
    read_required_url,
)
from gpuscope.judge.notify.channels import ChannelKind, UrlForm, url_segments
from gpuscope.judge.notify.message_texts import MARKDOWN, Messages, default_template
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
class DiscordConfig:
    kind: ClassVar[str] = "discord"
    url: SecretText
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    title: str = TITLE
    message: str = MESSAGE
    content: str = CONTENT
    username: str = ""
    """Not a template."""
    avatar_url: str = ""
    """Not a template."""

    def target(self) -> str:
        return self.url.host()


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> DiscordConfig:
    return DiscordConfig(
        url=read_required_url(table, "webhook_url"),
        send_resolved=table.switch("send_resolved", True),
        http=read_channel_http(table, http),
        title=table.text("title", TITLE),
        message=table.text("message", MESSAGE),
        content=table.text("content", CONTENT),
        username=table.text("username"),
        avatar_url=table.text("avatar_url"),
    )


def _parse_url(url: str, parts: SplitResult) -> DiscordConfig | None:
    words = url_segments(parts)
    if len(words) != 2:
        return None
    return DiscordConfig(url=SecretText("https://discord.com/api/webhooks/" + "/".join(words)))


class DiscordSender:
    def __init__(self, config: DiscordConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

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

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        document, told = self.compose(notification)
        post_json(
            self._config.url.reveal(), document, self._config.http, timeout_seconds, retried_statuses=(429,)
        )
        return told


KIND = ChannelKind(
    name="discord",
    summary="a webhook of Discord",
    sender=DiscordSender,
    read=_read,
    url=UrlForm(("discord",), "discord://WEBHOOK_ID/TOKEN", _parse_url),
    texts=TEXTS,
)
