"""Expands the texts of a receiver for one notification.

A text that is one of Alertmanager's defaults gives our own message (`default_messages`), unless a template file
defines that name; every other text with `{{` is a Go template (`notification_templates`).
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from gpuscope.judge.notify import default_messages
from gpuscope.judge.notify.channels import NOBODY_TOLD, SendError, Told
from gpuscope.judge.notify.notification import FIRING, Notification

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
        one.firing, external_url=one.external_url, most=one.max_listed
    ),
    '{{ template "pagerduty.default.instances" .Alerts.Resolved }}': lambda one: default_messages.alert_lines(
        one.resolved, external_url=one.external_url, most=one.max_listed
    ),
    "{{ .Alerts.Firing | len }}": lambda one: str(len(one.firing)),
    "{{ .Alerts.Resolved | len }}": lambda one: str(len(one.resolved)),
}


_LISTS: Final = frozenset(
    {
        "slack.default.text",
        "email.default.html",
        "email.default.text",
        "telegram.default.message",
        "discord.default.message",
        "msteamsv2.default.text",
    }
)
"""Default messages that have every alert; the others have their number at most."""


class FittedText(NamedTuple):
    text: str
    told: Told
    """The alerts that it has in full."""


def fit_alerts(notification: Notification, render: Message, shorten: Callable[[str], str]) -> FittedText:
    """A default message with as many whole alerts as its channel takes. `shorten` returns a text that the
    channel takes as it is."""
    whole = render(notification)
    if shorten(whole) == whole:
        return FittedText(whole, default_messages.listed_alerts(notification))

    def is_too_long(count: int) -> bool:
        text = render(notification.listing(count))
        return shorten(text) != text

    counts = range(1, min(notification.max_listed, len(notification.alerts)))
    count = bisect_left(counts, True, key=is_too_long)
    if count == 0:
        return FittedText(shorten(whole), NOBODY_TOLD)
    fewer = notification.listing(count)
    return FittedText(render(fewer), default_messages.listed_alerts(fewer))


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

    def fit(
        self,
        text: str,
        notification: Notification,
        shorten: Callable[[str], str] = str,
        style: MessageStyle = MessageStyle.PLAIN,
    ) -> FittedText:
        """As `expand`, and which alerts it tells. What a user's template says of an alert is the user's choice;
        one that had to be cut tells nobody for certain."""
        if self._default_name(text) in _LISTS:
            return fit_alerts(notification, lambda fewer: self.expand(text, fewer, style), shorten)
        expanded = self.expand(text, notification, style)
        shortened = shorten(expanded)
        is_about_alerts = "{{" in text and not self.is_default(text) and bool(expanded.strip())
        is_told = is_about_alerts and shortened == expanded
        return FittedText(shortened, notification.fingerprints if is_told else NOBODY_TOLD)

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
        return DEFAULT_MESSAGES.get(self._default_name(text))

    def _default_name(self, text: str) -> str:
        """The name of the default that the text is; empty if it is none, or a file defines it."""
        match = _ONE_TEMPLATE.fullmatch(text.strip())
        return "" if match is None or match[1] in self._engine.replaced else match[1]
