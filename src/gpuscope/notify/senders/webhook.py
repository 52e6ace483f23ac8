"""Webhooks: Alertmanager's body, version 4, or a document of the user's own (`payload`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuscope.notify.channel_configs import WebhookConfig
from gpuscope.notify.channels import SendError
from gpuscope.notify.message_templates import Messages
from gpuscope.notify.notification import Notification
from gpuscope.notify.senders.json_post import attempt_seconds, post_json


def webhook_body(notification: Notification, max_alerts: int = 0) -> dict[str, object]:
    """Keys in Alertmanager's order."""
    total = len(notification.alerts)
    truncated = max(0, total - max_alerts) if max_alerts else 0
    told = notification.first(max_alerts) if truncated else notification
    labels = {"routeLabels": dict(notification.route_labels)} if notification.route_labels else {}
    return {
        **told.to_json(),
        **labels,
        "version": "4",
        "groupKey": notification.group_key,
        "truncatedAlerts": truncated,
    }


def expand_document(value: object, expand: Callable[[str], str]) -> object:
    """The document with every text expanded, keys too."""
    if isinstance(value, dict):
        return {expand(str(key)): expand_document(inner, expand) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand_document(inner, expand) for inner in value]
    return expand(value) if isinstance(value, str) else value


class WebhookSender:
    def __init__(self, config: WebhookConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def send(self, notification: Notification, timeout_seconds: float) -> None:
        config = self._config
        document: object = webhook_body(notification, config.max_alerts)
        if notification.route_labels:
            labels = {
                name: self._messages.expand(value, notification)
                for name, value in notification.route_labels.items()
            }
            document = webhook_body(replace(notification, route_labels=labels), config.max_alerts)
        if config.payload is not None:
            document = expand_document(config.payload, lambda text: self._messages.expand(text, notification))
        url = self._messages.expand(config.url.reveal(), notification)
        if not url:
            raise SendError("the webhook's URL is empty", may_retry=False)
        post_json(url, document, config.http, attempt_seconds(timeout_seconds, config.timeout))
