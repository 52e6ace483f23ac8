"""Webhooks: Alertmanager's body, version 4, or a document of the user's own (`payload`)."""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import urlsplit

from gpuscope.base.errors import UsageError
from gpuscope.base.yaml_file import parse_yaml
from gpuscope.judge.notify.channel_configs import WebhookConfig
from gpuscope.judge.notify.channels import SendError, Told
from gpuscope.judge.notify.message_templates import Messages
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.senders.json_post import attempt_seconds, post_json


def webhook_body(notification: Notification, max_alerts: int = 0) -> dict[str, object]:
    """Keys in Alertmanager's order."""
    total = len(notification.alerts)
    truncated = max(0, total - max_alerts) if max_alerts else 0
    told = notification.first(max_alerts) if truncated else notification
    return {
        **told.to_json(),
        "version": "4",
        "groupKey": notification.group_key,
        "truncatedAlerts": truncated,
    }


def expand_document(value: object, messages: Messages, notification: Notification) -> object:
    """The document with every text expanded, keys too. An expanded text that is YAML for something else than a
    text, such as 7 or [a, b], becomes that: so it is in Alertmanager."""
    if isinstance(value, dict):
        return {
            messages.expand(str(key), notification): expand_document(inner, messages, notification)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [expand_document(inner, messages, notification) for inner in value]
    if not isinstance(value, str):
        return value
    text = messages.expand(value, notification)
    if messages.is_default(value) and not text.isdigit():
        return text
    return _typed(text)


def _typed(text: str) -> object:
    try:
        value = parse_yaml(text, "payload", typed=True)
        json.dumps(value, allow_nan=False)
    except (UsageError, ValueError, TypeError):  # not YAML, or a date or a number that JSON does not have
        return text
    return text if isinstance(value, str) else value


_URL_SEPARATORS: Final = re.compile(r"[\s/:@?#\\\[\]]")


class WebhookSender:
    def __init__(self, config: WebhookConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        told = notification
        if config.payload is not None:
            document = expand_document(config.payload, self._messages, notification)
        else:
            document = webhook_body(notification, config.max_alerts)
            told = notification.first(config.max_alerts) if config.max_alerts else notification
        url = self._url(notification)
        post_json(url, document, config.http, attempt_seconds(timeout_seconds, config.timeout))
        return told.fingerprints

    def _url(self, notification: Notification) -> str:
        template = self._config.url.reveal()
        url = self._messages.expand(template, notification)
        if not url:
            raise SendError("the webhook's URL is empty", may_retry=False)
        plain = urlsplit(self._messages.expand(template, notification.without(_URL_SEPARATORS)))
        # Labels are what users choose: in a URL whose host the configuration names, they must not name another.
        if plain.netloc and plain.netloc != urlsplit(url).netloc:
            raise SendError("a label or an annotation in the webhook's URL changes its host", may_retry=False)
        return url
