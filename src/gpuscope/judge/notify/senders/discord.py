"""Discord: one embed per message. Mentions are switched off: `@everyone` in a label must notify nobody."""

from __future__ import annotations

from gpuscope.judge.notify.channel_configs import DiscordConfig
from gpuscope.judge.notify.channels import Told
from gpuscope.judge.notify.default_messages import escape_markdown
from gpuscope.judge.notify.message_templates import Messages, MessageStyle
from gpuscope.judge.notify.notification import FIRING, Notification
from gpuscope.judge.notify.senders.json_post import ComposedMessage, cut, post_json

MAX_TITLE_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 4096
MAX_CONTENT_CHARACTERS = 2000
RED, GREEN = 0x992D22, 0x2ECC71


class DiscordSender:
    def __init__(self, config: DiscordConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def compose(self, notification: Notification) -> ComposedMessage:
        config = self._config

        def expand(text: str) -> str:
            return self._messages.expand(text, notification, MessageStyle.MARKDOWN)

        title = expand(config.title)
        if self._messages.is_default(config.title):
            title = escape_markdown(title)
        message = self._messages.fit(
            config.message,
            notification,
            lambda text: cut(text, MAX_DESCRIPTION_CHARACTERS),
            MessageStyle.MARKDOWN,
        )
        embed = {
            "title": cut(title, MAX_TITLE_CHARACTERS),
            "description": message.text,
            "color": RED if notification.status == FIRING else GREEN,
        }
        document: dict[str, object] = {
            "content": cut(expand(config.content), MAX_CONTENT_CHARACTERS),
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
