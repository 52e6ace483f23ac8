"""Expands the texts of a receiver for one notification.

A text that is one of Alertmanager's defaults gives our own message (`default_messages`), unless a template file
defines that name; every other text with `{{` is a Go template (`notification_templates`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

from gpuscope.notify import default_messages
from gpuscope.notify.channels import SendError
from gpuscope.notify.notification import FIRING, Notification

log = logging.getLogger("gpuscope.notify")
Message = Callable[[Notification], str]
_ONE_TEMPLATE = re.compile(r'\{\{-?\s*template\s+"([^"]+)"\s+\.\s*-?\}\}')


def _nothing(notification: Notification) -> str:
    return ""


def _color(notification: Notification) -> str:
    return "danger" if notification.status == FIRING else "good"


def _fallback(notification: Notification) -> str:
    return f"{default_messages.subject(notification)} | {default_messages.page_link(notification)}"


DEFAULT_MESSAGES: Mapping[str, Message] = {
    "__subject": default_messages.subject,
    "__alertmanagerURL": default_messages.page_link,
    "slack.default.title": default_messages.subject,
    "slack.default.username": lambda one: "gpuscope",
    "slack.default.fallback": _fallback,
    "slack.default.callbackid": _nothing,
    "slack.default.pretext": _nothing,
    "slack.default.titlelink": default_messages.page_link,
    "slack.default.iconemoji": _nothing,
    "slack.default.iconurl": _nothing,
    "slack.default.text": default_messages.slack_body,
    "slack.default.footer": _nothing,
    "slack.default.color": _color,
    "email.default.subject": default_messages.subject,
    "email.default.html": default_messages.html_body,
    "email.default.text": default_messages.plain_body,
    "pagerduty.default.description": default_messages.subject,
    "pagerduty.default.client": lambda one: "gpuscope",
    "pagerduty.default.clientURL": default_messages.page_link,
    "telegram.default.message": default_messages.telegram_body,
    "discord.default.title": default_messages.subject,
    "discord.default.content": _nothing,
    "discord.default.message": default_messages.markdown_body,
    "msteamsv2.default.title": default_messages.subject,
    "msteamsv2.default.text": default_messages.markdown_body,
}
"""By the names of Alertmanager's own templates."""

WHOLE_TEXTS: Mapping[str, Message] = {
    '{{ template "pagerduty.default.instances" .Alerts.Firing }}': lambda one: default_messages.alert_lines(
        one.firing, external_url=one.external_url
    ),
    '{{ template "pagerduty.default.instances" .Alerts.Resolved }}': lambda one: default_messages.alert_lines(
        one.resolved, external_url=one.external_url
    ),
    "{{ .Alerts.Firing | len }}": lambda one: str(len(one.firing)),
    "{{ .Alerts.Resolved | len }}": lambda one: str(len(one.resolved)),
}


class MessageStyle(Enum):
    """How a channel reads a text, and so what must be escaped in it."""

    PLAIN = "plain"
    SLACK = "slack"
    MARKDOWN = "markdown"
    HTML = "html"


class TemplateEngine(Protocol):
    replaced: frozenset[str]
    """Names of defaults that the user's files define."""

    def check(self, text: str) -> None:
        """ValueError with the reason if it is not a template."""
        ...

    def expand(self, text: str, notification: Notification, style: MessageStyle) -> str:
        """ValueError with the reason."""
        ...

    def route_label(self, name: str, notification: Notification) -> str:
        """One of the notification's route labels, expanded; it may refer to others. ValueError with the
        reason."""
        ...


class Messages:
    """The texts of all receivers."""

    def __init__(self, engine: TemplateEngine) -> None:
        self._engine = engine

    def check(self, text: str) -> None:
        """ValueError if `text` is not a template."""
        if self._default(text) is None and "{{" in text:
            self._engine.check(text)

    def expand(self, text: str, notification: Notification, style: MessageStyle = MessageStyle.PLAIN) -> str:
        default = self._default(text)
        if default is not None:
            return default(notification)
        if "{{" not in text:
            return text
        try:
            return self._engine.expand(text, notification, style)
        except ValueError as error:
            raise SendError(f"template {text[:100]!r}: {error}", may_retry=False) from None

    def expand_route_labels(self, notification: Notification) -> dict[str, str]:
        """Its route labels as they are sent. One whose template fails is left out, as in Alertmanager."""
        expanded: dict[str, str] = {}
        for name, value in notification.route_labels.items():
            try:
                expanded[name] = self._engine.route_label(name, notification) if "{{" in value else value
            except ValueError as error:
                log.error("label %r of the route of receiver %r: %s", name, notification.receiver, error)
        return expanded

    def is_default(self, text: str) -> bool:
        """Whether our own message is sent for it."""
        return self._default(text) is not None

    def _default(self, text: str) -> Message | None:
        if text in WHOLE_TEXTS and "pagerduty.default.instances" not in self._engine.replaced:
            return WHOLE_TEXTS[text]
        match = _ONE_TEMPLATE.fullmatch(text.strip())
        if match is None or match[1] in self._engine.replaced:
            return None
        return DEFAULT_MESSAGES.get(match[1])
