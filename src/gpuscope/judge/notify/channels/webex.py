"""Webex: a message in a room, as Markdown. The bot's token is in `http_config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    PLAIN_HTTP,
    ComposedMessage,
    cut_bytes,
    has_authorization,
    read_plain_url,
)
from gpuscope.judge.notify.channels import ApiUrlConfig, ChannelKind, JsonSender, read_entry
from gpuscope.judge.notify.message_texts import MARKDOWN, default_template
from gpuscope.judge.notify.notification import Notification

API_URL = "https://webexapis.com/v1/messages"
MAX_MESSAGE_BYTES = 7439
MESSAGE = default_template("webex.default.message")
TEXTS = """
{{ define "webex.default.message" }}{{ template "__text_markdown" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebexConfig(ApiUrlConfig):
    kind: ClassVar[str] = "webex"
    room_id: str
    """A template."""
    message: str = MESSAGE


def _read_globals(table: ConfigMapping) -> str:
    return read_plain_url(table, "webex_api_url", API_URL)


def _read(table: ConfigMapping, http: HttpConfig, api_url: str) -> WebexConfig:
    room_id = table.text("room_id")
    if not room_id:
        table.fail("room_id", "is missing")
    if not has_authorization(table):
        table.fail("http_config", "authorization is missing: give the bot's token as its credentials")
    url = read_plain_url(table, "api_url", api_url)
    return read_entry(WebexConfig, table, PLAIN_HTTP, room_id=room_id, api_url=url)


class WebexSender(JsonSender[WebexConfig]):
    retried_statuses = ()

    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages
        message = messages.fit(
            config.message, notification, lambda text: cut_bytes(text, MAX_MESSAGE_BYTES), MARKDOWN
        )
        document: dict[str, object] = {"markdown": message.text}
        room_id = messages.expand(config.room_id, notification)
        if room_id:
            document["roomId"] = room_id
        return ComposedMessage(document, message.told)


KIND = ChannelKind(
    name="webex",
    summary="a room of Webex",
    sender=WebexSender,
    read=_read,
    read_globals=_read_globals,
    texts=TEXTS,
)
