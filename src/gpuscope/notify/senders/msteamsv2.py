"""Microsoft Teams: an adaptive card for a workflow's webhook."""

from __future__ import annotations

from gpuscope.notify.channel_configs import MsTeamsV2Config
from gpuscope.notify.default_messages import escape_markdown
from gpuscope.notify.message_templates import Messages, MessageStyle
from gpuscope.notify.notification import FIRING, Notification
from gpuscope.notify.senders.json_post import cut, post_json

MAX_TITLE_CHARACTERS = 1000
MAX_TEXT_CHARACTERS = 20_000
"""Teams refuses messages above 28 KB."""


class MsTeamsV2Sender:
    def __init__(self, config: MsTeamsV2Config, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def document(self, notification: Notification) -> dict[str, object]:
        title = self._messages.expand(self._config.title, notification, MessageStyle.MARKDOWN)
        if self._messages.is_default(self._config.title):
            title = escape_markdown(title)
        text = self._messages.expand(self._config.text, notification, MessageStyle.MARKDOWN)
        heading = {
            "type": "TextBlock",
            "text": cut(title, MAX_TITLE_CHARACTERS),
            "weight": "Bolder",
            "size": "Medium",
            "wrap": True,
            "style": "heading",
            "color": "Attention" if notification.status == FIRING else "Good",
        }
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.2",
            "body": [heading, {"type": "TextBlock", "text": cut(text, MAX_TEXT_CHARACTERS), "wrap": True}],
            "msteams": {"width": "full"},
        }
        attachment = {
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": card,
        }
        return {"type": "message", "attachments": [attachment]}

    def send(self, notification: Notification, timeout_seconds: float) -> None:
        document = self.document(notification)
        post_json(
            self._config.url.reveal(), document, self._config.http, timeout_seconds, retried_statuses=(429,)
        )
