"""Telegram: a bot's message to a chat. Labels are escaped as HTML if that is the parse mode."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping

from gpuscope.notify.channel_configs import TelegramConfig
from gpuscope.notify.channels import SendError
from gpuscope.notify.default_messages import plain_body, subject
from gpuscope.notify.message_templates import Messages, MessageStyle
from gpuscope.notify.notification import Notification
from gpuscope.notify.senders.json_post import cut, post_json

MAX_MESSAGE_CHARACTERS = 4096
_MARKDOWN_V2 = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")


def _escape_markdown_v2(text: str) -> str:
    return _MARKDOWN_V2.sub(r"\\\1", text)


_ESCAPES: Mapping[str, Callable[[str], str]] = {
    "HTML": html.escape,
    "MarkdownV2": _escape_markdown_v2,
    "Markdown": _escape_markdown_v2,
}

_STYLES = {
    "": MessageStyle.PLAIN,
    "HTML": MessageStyle.HTML,
    "Markdown": MessageStyle.MARKDOWN,
    "MarkdownV2": MessageStyle.MARKDOWN,
}


class TelegramSender:
    def __init__(self, config: TelegramConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def document(self, notification: Notification) -> dict[str, object]:
        config = self._config
        escape = _ESCAPES.get(config.parse_mode, str)
        message = self._messages.expand(config.message, notification, _STYLES[config.parse_mode])
        if config.parse_mode != "HTML" and self._messages.is_default(config.message):
            message = escape(plain_body(notification))  # the default message has HTML tags
        if len(message) > MAX_MESSAGE_CHARACTERS:
            # Cutting HTML would leave a tag open, and Telegram would refuse the message.
            message = (
                cut(escape(subject(notification)), MAX_MESSAGE_CHARACTERS)
                if config.parse_mode
                else cut(message, MAX_MESSAGE_CHARACTERS)
            )
        document: dict[str, object] = {
            "chat_id": config.chat_id.reveal(),
            "text": message,
            "disable_web_page_preview": True,
        }
        if config.parse_mode:
            document["parse_mode"] = config.parse_mode
        if config.disable_notifications:
            document["disable_notification"] = True
        if config.message_thread_id:
            document["message_thread_id"] = config.message_thread_id
        return document

    def send(self, notification: Notification, timeout_seconds: float) -> None:
        token = self._config.bot_token.reveal()
        if re.fullmatch(r"[\w:.-]+", token, re.ASCII) is None:
            raise SendError("the bot token has characters that no token has", may_retry=False)
        url = f"{self._config.api_url.rstrip('/')}/bot{token}/sendMessage"
        post_json(url, self.document(notification), self._config.http, timeout_seconds, retried_statuses=(429,))
