"""ntfy: a JSON message to the server, so that no label ends up in an HTTP header."""

from __future__ import annotations

from gpuscope.base.http_config import basic_header
from gpuscope.judge.notify.channel_configs import NtfyConfig
from gpuscope.judge.notify.channels import Told
from gpuscope.judge.notify.default_messages import page_link, plain_body, subject, web_link
from gpuscope.judge.notify.message_templates import Messages, fit_alerts
from gpuscope.judge.notify.notification import FIRING, Notification
from gpuscope.judge.notify.senders.json_post import ComposedMessage, cut, post_json

MAX_TITLE_CHARACTERS = 200
MAX_MESSAGE_BYTES = 3900
"""ntfy makes an attachment of a message above 4,096 bytes."""
_PRIORITIES = {"critical": 5, "warning": 4, "info": 2}
_DEFAULT_PRIORITY = 3


class NtfySender:
    def __init__(self, config: NtfyConfig, messages: Messages) -> None:
        self._config = config

    def compose(self, notification: Notification) -> ComposedMessage:
        is_firing = notification.status == FIRING
        severities = {alert.labels.get("severity", "") for alert in notification.firing}
        priority = max(
            (_PRIORITIES.get(one, _DEFAULT_PRIORITY) for one in severities), default=_DEFAULT_PRIORITY
        )
        message = fit_alerts(notification, plain_body, _shorten)
        document: dict[str, object] = {
            "topic": self._config.topic.reveal(),
            "title": cut(subject(notification), MAX_TITLE_CHARACTERS),
            "message": message.text,
            "priority": priority if is_firing else _DEFAULT_PRIORITY,
            "tags": ["rotating_light" if is_firing else "white_check_mark"],
        }
        if link := web_link(page_link(notification)):
            document["click"] = link
        return ComposedMessage(document, message.told)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        headers: tuple[tuple[str, str], ...] = ()
        if config.token:
            headers = (("authorization", f"Bearer {config.token.reveal()}"),)
        elif config.username:
            headers = (basic_header(config.username, config.password.reveal()),)
        document, told = self.compose(notification)
        post_json(
            config.url.reveal(),
            document,
            config.http,
            timeout_seconds,
            retried_statuses=(429,),
            headers=headers,
        )
        return told


def _shorten(text: str) -> str:
    message = text.encode("utf-8", "replace")
    if len(message) > MAX_MESSAGE_BYTES:
        message = message[:MAX_MESSAGE_BYTES] + "…".encode()
    return message.decode("utf-8", "ignore")
