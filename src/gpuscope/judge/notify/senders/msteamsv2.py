"""Microsoft Teams: an adaptive card for a workflow's webhook."""

from __future__ import annotations

from gpuscope.judge.notify.channel_configs import MsTeamsV2Config
from gpuscope.judge.notify.channels import Told
from gpuscope.judge.notify.default_messages import escape_markdown
from gpuscope.judge.notify.message_templates import Messages, MessageStyle
from gpuscope.judge.notify.notification import FIRING, Notification
from gpuscope.judge.notify.senders.json_post import ComposedMessage, cut, encode, post_json

MAX_TITLE_CHARACTERS = 1000
MAX_TEXT_CHARACTERS = 20_000
MAX_MESSAGE_BYTES = 27_000
"""Teams refuses messages above 28 KB, and 20,000 characters may be more: a Chinese one has 3 bytes."""


class MsTeamsV2Sender:
    def __init__(self, config: MsTeamsV2Config, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def compose(self, notification: Notification) -> ComposedMessage:
        title = self._messages.expand(self._config.title, notification, MessageStyle.MARKDOWN)
        if self._messages.is_default(self._config.title):
            title = escape_markdown(title)
        is_firing = notification.status == FIRING

        def shorten(text: str) -> str:
            text = cut(text, MAX_TEXT_CHARACTERS)
            while text and (size := len(encode(_card(title, text, is_firing=is_firing)))) > MAX_MESSAGE_BYTES:
                text = cut(text, max(1, len(text) * MAX_MESSAGE_BYTES // size - 1))
            return text

        fitted = self._messages.fit(self._config.text, notification, shorten, MessageStyle.MARKDOWN)
        return ComposedMessage(_card(title, fitted.text, is_firing=is_firing), fitted.told)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        document, told = self.compose(notification)
        post_json(
            self._config.url.reveal(), document, self._config.http, timeout_seconds, retried_statuses=(429,)
        )
        return told


def _card(title: str, text: str, *, is_firing: bool) -> dict[str, object]:
    heading = {
        "type": "TextBlock",
        "text": cut(title, MAX_TITLE_CHARACTERS),
        "weight": "Bolder",
        "size": "Medium",
        "wrap": True,
        "style": "heading",
        "color": "Attention" if is_firing else "Good",
    }
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [heading, {"type": "TextBlock", "text": text, "wrap": True}],
        "msteams": {"width": "full"},
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}
