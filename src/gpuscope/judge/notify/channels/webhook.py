"""Webhooks: Alertmanager's body, version 4, or a document of the user's own (`payload`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import HttpConfig
from gpuscope.base.yaml_file import parse_yaml
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, SendError, read_required_url
from gpuscope.judge.notify.channels import ChannelKind, JsonSender, UrlForm, WebhookUrlConfig, read_entry
from gpuscope.judge.notify.message_texts import Messages
from gpuscope.judge.notify.notification import Notification

_URL_SEPARATORS: Final = re.compile(r"[\s/:@?#\\\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig(WebhookUrlConfig):
    """Its URL is a template."""

    kind: ClassVar[str] = "webhook"
    max_alerts: int = 0
    payload: Any = None
    """A document whose texts are templates; None for Alertmanager's version 4."""


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> WebhookConfig:
    url, timeout = read_required_url(table, "url"), table.duration("timeout", 0.0)
    return read_entry(WebhookConfig, table, http, url=url, timeout=timeout, payload=table.raw("payload"))


def _parse_url(url: str, parts: SplitResult) -> WebhookConfig | None:
    return WebhookConfig(url=SecretText(url)) if parts.hostname else None


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
    return text if messages.is_default(value) else _typed(text)


def _typed(text: str) -> object:
    try:
        value = parse_yaml(text, "payload", typed=True)
        json.dumps(value, allow_nan=False)
    except (UsageError, ValueError, TypeError):  # not YAML, or a date or a number that JSON does not have
        return text
    return text if isinstance(value, str) else value


class WebhookSender(JsonSender[WebhookConfig]):
    retried_statuses = ()

    def compose(self, notification: Notification) -> ComposedMessage:
        payload, most = self._config.payload, self._config.max_alerts
        if payload is not None:
            document = expand_document(payload, self._messages, notification)
            return ComposedMessage(document, notification.fingerprints)
        told = notification.first(most) if most else notification
        return ComposedMessage(webhook_body(notification, most), told.fingerprints)

    def url(self, notification: Notification) -> str:
        template = self._config.url.reveal()
        url = self._messages.expand(template, notification)
        if not url:
            raise SendError("the webhook's URL is empty", may_retry=False)
        plain = urlsplit(self._messages.expand(template, notification.without(_URL_SEPARATORS)))
        # Labels are what users choose: in a URL whose host the configuration names, they must not name another.
        if plain.netloc and plain.netloc != urlsplit(url).netloc:
            raise SendError("a label or an annotation in the webhook's URL changes its host", may_retry=False)
        return url


KIND = ChannelKind(
    name="webhook",
    summary="a webhook with Alertmanager's body, version 4",
    sender=WebhookSender,
    read=_read,
    url=UrlForm(("http", "https"), "https://HOST/PATH", _parse_url, has_port=True),
)
