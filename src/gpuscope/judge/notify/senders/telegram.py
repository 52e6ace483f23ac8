"""Telegram: a bot's message to a chat. Labels are escaped as HTML if that is the parse mode."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping

from gpuscope.judge.notify.channel_configs import TelegramConfig
from gpuscope.judge.notify.channels import SendError, Told
from gpuscope.judge.notify.default_messages import plain_body, subject
from gpuscope.judge.notify.message_templates import Messages, MessageStyle, fit_alerts
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.senders.json_post import ComposedMessage, cut, post_json

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

    def compose(self, notification: Notification) -> ComposedMessage:
        config = self._config
        escape = _ESCAPES.get(config.parse_mode, str)

        def shorten(text: str) -> str:
            if len(text) > MAX_MESSAGE_CHARACTERS and config.parse_mode:
                # Cutting HTML would leave a tag open, and Telegram would refuse the message.
                text = escape(subject(notification))
            return cut(text, MAX_MESSAGE_CHARACTERS)

        if config.parse_mode != "HTML" and self._messages.is_default(config.message):
            # The default message has HTML tags.
            message = fit_alerts(notification, lambda fewer: escape(plain_body(fewer)), shorten)
        else:
            message = self._messages.fit(config.message, notification, shorten, _STYLES[config.parse_mode])
        document: dict[str, object] = {
            "chat_id": config.chat_id.reveal(),
            "text": message.text,
            "disable_web_page_preview": True,
        }
        if config.parse_mode:
            document["parse_mode"] = config.parse_mode
        if config.disable_notifications:
            document["disable_notification"] = True
        if config.message_thread_id:
            document["message_thread_id"] = config.message_thread_id
        return ComposedMessage(document, message.told)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        token = self._config.bot_token.reveal()
        if re.fullmatch(r"[\w:.-]+", token, re.ASCII) is None:
            raise SendError("the bot token has characters that no token has", may_retry=False)
        url = f"{self._config.api_url.rstrip('/')}/bot{token}/sendMessage"
        document, told = self.compose(notification)
        post_json(url, document, self._config.http, timeout_seconds, retried_statuses=(429,))
        return told
