"""Expands the texts of a receiver for one notification.

Without a template engine only the default messages and texts without `{{` can be expanded; a file that has
others is refused when it is loaded. `TemplateEngine` is the border to the engine in `rules/templates`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from gpuscope.notify import default_messages
from gpuscope.notify.channels import SendError
from gpuscope.notify.notification import FIRING, Notification

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
        one.firing, str
    ),
    '{{ template "pagerduty.default.instances" .Alerts.Resolved }}': lambda one: default_messages.alert_lines(
        one.resolved, str
    ),
    "{{ .Alerts.Firing | len }}": lambda one: str(len(one.firing)),
    "{{ .Alerts.Resolved | len }}": lambda one: str(len(one.resolved)),
}


class TemplateEngine(Protocol):
    def check(self, text: str) -> None:
        """ValueError with the reason if it is not a template."""
        ...

    def expand(self, text: str, notification: Notification, *, escape: Callable[[str], str]) -> str:
        """ValueError with the reason. `escape` is applied to every label and annotation."""
        ...


class Messages:
    """The texts of all receivers."""

    def __init__(self, engine: TemplateEngine | None = None) -> None:
        self._engine = engine

    def check(self, text: str) -> None:
        """ValueError if `text` cannot be expanded."""
        if self._default(text) is None and "{{" in text:
            if self._engine is None:
                raise ValueError("templates other than the default ones are not supported yet")
            self._engine.check(text)

    def expand(self, text: str, notification: Notification, *, escape: Callable[[str], str] = str) -> str:
        default = self._default(text)
        if default is not None:
            return default(notification)
        if "{{" not in text:
            return text
        if self._engine is None:
            raise SendError("templates are not supported", may_retry=False)
        try:
            return self._engine.expand(text, notification, escape=escape)
        except ValueError as error:
            raise SendError(f"template {text[:100]!r}: {error}", may_retry=False) from None

    def _default(self, text: str) -> Message | None:
        if text in WHOLE_TEXTS:
            return WHOLE_TEXTS[text]
        match = _ONE_TEMPLATE.fullmatch(text.strip())
        return None if match is None else DEFAULT_MESSAGES.get(match[1])
