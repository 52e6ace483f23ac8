"""Go templates for notifications: the texts of receivers and the files under `templates`.

Every text is parsed when the configuration is loaded. In HTML each value is escaped for the place where it
stands; elsewhere labels and annotations are escaped for the channel (`MessageStyle`) before they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.base.files import read_regular_text
from gpuscope.base.limits import Limits
from gpuscope.judge.notify.default_messages import escape_slack
from gpuscope.judge.notify.message_templates import MessageStyle
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.template_definitions import default_definitions
from gpuscope.judge.rules.templates import (
    AlertList,
    GoTime,
    KeyValues,
    NotificationData,
    Template,
    TemplateAlert,
    TemplateError,
    alertmanager_functions,
    parse,
)
from gpuscope.judge.rules.templates.go_time import ZERO_TIME_SECONDS

MAX_PARSED_TEXTS = 1000
"""A webhook's URL may be in a file that changes."""
_ZERO_TIME = GoTime(ZERO_TIME_SECONDS * 1_000_000_000)
_MENTION = re.compile(r"<(?=[!@#])")


class NotificationTemplates:
    """A `TemplateEngine`. For several threads at once: what is shared does not change."""

    def __init__(self, files: Sequence[Path] = (), limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._functions = alertmanager_functions()
        defaults = parse(default_definitions(), "default.tmpl", self._functions, limits=self._limits)
        base = defaults
        for path in files:
            try:
                text = read_regular_text(path)
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise UsageError(f"{path}: {reason}") from None
            try:
                base = parse(text, path.name, self._functions, base, self._limits)
            except TemplateError as error:
                raise UsageError(f"{path}: {error.message}") from None
        self.replaced = frozenset(
            name for name, tree in base.trees.items() if defaults.trees.get(name) is not tree
        )
        """Names that the files define, defaults among them."""
        self._base = base
        self._parsed: dict[str, Template] = {}

    def check(self, text: str) -> None:
        try:
            self._parse(text)
        except TemplateError as error:
            raise ValueError(error.message) from None

    def _parse(self, text: str) -> Template:
        template = self._parsed.get(text)
        if template is None:
            template = parse(text, "", self._functions, self._base, self._limits)
            if len(self._parsed) < MAX_PARSED_TEXTS:
                self._parsed[text] = template
        return template

    def expand(self, text: str, notification: Notification, style: MessageStyle) -> str:
        data = template_data(notification, _ESCAPES.get(style, (str, str)))
        now = go_time_value(notification.sent_at)

        def route_label(name: str) -> str:
            return notification.route_labels.get(name, "")

        functions = alertmanager_functions(lambda: now, route_label)
        try:
            template = self._parse(text)
            if style is MessageStyle.HTML:
                return template.expand_html(data, functions)
            return template.expand(data, functions)
        except TemplateError as error:
            raise ValueError(error.message) from None

    def route_label(self, name: str, notification: Notification) -> str:
        data = template_data(notification, (str, str))
        now = go_time_value(notification.sent_at)
        in_progress: list[str] = []
        expanded: dict[str, str] = {}  # each once: ten labels that name each other twice are 1,024 expansions

        def resolve(name: str) -> str:
            value = notification.route_labels.get(name, "")
            if name in expanded:
                return expanded[name]
            if name in in_progress:
                raise TemplateError(f"route label cycle detected: {' -> '.join((*in_progress, name))}")
            in_progress.append(name)
            text = self._parse(value).expand(data, alertmanager_functions(lambda: now, resolve))
            in_progress.pop()
            expanded[name] = text
            return text

        try:
            return resolve(name)
        except TemplateError as error:
            raise ValueError(error.message) from None


def go_time_value(seconds: float | None) -> GoTime:
    return _ZERO_TIME if seconds is None else GoTime(round(seconds * 1_000_000) * 1000)


def _escape_slack_annotation(text: str) -> str:
    """Annotations may hold links that the rule's author wrote, but must not mention anybody."""
    return _MENTION.sub("&lt;", text)


def _escape_markdown_label(text: str) -> str:
    return "".join(f"\\{character}" if character in "`[]<>" else character for character in text)


_Escape = Callable[[str], str]
_ESCAPES: Mapping[MessageStyle, tuple[_Escape, _Escape]] = {
    MessageStyle.SLACK: (escape_slack, _escape_slack_annotation),
    MessageStyle.MARKDOWN: (_escape_markdown_label, str),
}


def template_data(notification: Notification, escapes: tuple[_Escape, _Escape]) -> NotificationData:
    label, annotation = escapes

    def labels(values: Mapping[str, str]) -> KeyValues:
        return KeyValues({name: label(value) for name, value in values.items()})

    def annotations(values: Mapping[str, str]) -> KeyValues:
        return KeyValues({name: annotation(value) for name, value in values.items()})

    return NotificationData(
        receiver=str(notification.to_json_receiver()),
        status=notification.status,
        alerts=AlertList(
            TemplateAlert(
                status=one.status,
                labels=labels(one.labels),
                annotations=annotations(one.annotations),
                starts_at=go_time_value(one.starts_at),
                ends_at=go_time_value(one.ends_at),
                generator_url=one.generator_url,
                fingerprint=one.fingerprint,
            )
            for one in notification.alerts
        ),
        notification_reason=notification.reason,
        group_labels=labels(notification.group_labels),
        common_labels=labels(notification.common_labels),
        common_annotations=annotations(notification.common_annotations),
        route_labels=labels(notification.route_labels),
        external_url=notification.external_url,
    )
