"""The texts of a message: Go templates, expanded for one notification.

Every text is parsed when the configuration is loaded. `default.tmpl` and the channels define the default
messages; files of the user may define the same names. In HTML each value is escaped for the place where it
stands; elsewhere labels and annotations are escaped for the channel (`MessageStyle`) before they are used.
"""

from __future__ import annotations

import html
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from gpuscope.base.errors import UsageError
from gpuscope.base.files import read_regular_text
from gpuscope.base.limits import Limits
from gpuscope.judge.notify.alert_store import StoredAlert
from gpuscope.judge.notify.channel import NOBODY_TOLD, SendError, Told
from gpuscope.judge.notify.notification import (
    MAX_LISTED,
    RESOLVED,
    Notification,
    alert_name,
    links_of,
    listed_alerts,
    page_link,
    rows_of,
)
from gpuscope.judge.rules.templates import (
    AlertList,
    GoFunction,
    GoTime,
    KeyValues,
    NotificationData,
    Pair,
    Pairs,
    Template,
    TemplateAlert,
    TemplateError,
    alertmanager_functions,
    parse,
)
from gpuscope.judge.rules.templates.go_time import ZERO_TIME_SECONDS

log = logging.getLogger("gpuscope.notify")
SHARED_DEFAULTS: Final = (Path(__file__).parent / "default.tmpl").read_text("utf-8")
"""What the default messages of several channels call."""
MAX_PARSED_TEXTS = 1000
"""A webhook's URL may be in a file that changes."""
_ZERO_TIME = GoTime(ZERO_TIME_SECONDS * 1_000_000_000)
_MENTION = re.compile(r"<(?=[!@#])")
_ONE_TEMPLATE = re.compile(r'\{\{-?\s*template\s+"([^"]+)"\s+\.[\w.]*\s*-?\}\}')
_CALL = re.compile(r'\{\{template "([^"]+)"')


def default_template(name: str) -> str:
    return f'{{{{ template "{name}" . }}}}'


SUBJECT: Final = default_template("__subject")
PLAIN_TEXT: Final = default_template("__text")

Escape = Callable[[str], str]


def escape_slack(text: str) -> str:
    """No link, mention or `<!channel>` can start without a `<`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_slack_annotation(text: str) -> str:
    """Annotations may hold links that the rule's author wrote, but must not mention anybody."""
    return _MENTION.sub("&lt;", text)


def _escape_slack_link(url: str) -> str:
    return escape_slack(_quote_link(url))


def _escape_markdown(text: str) -> str:
    """Of Discord and Teams."""
    return "".join(f"\\{c}" if c in "\\`*_[]#<>|~@" else c for c in text)


def _escape_markdown_label(text: str) -> str:
    return "".join(f"\\{c}" if c in "`[]<>" else c for c in text)


def _quote_link(url: str) -> str:
    """Without the characters that could end a link."""
    return "".join(c if c.isalnum() or c in "-._~:/?#@!$&*+,;=%" else quote(c, safe="") for c in url)


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """How a channel reads a text, and so what must be escaped in it."""

    text: Escape = str
    """For what we write: titles, and the rows of default messages."""
    label: Escape = str
    """For labels in the templates of users."""
    annotation: Escape = str
    link: Escape = str
    is_html: bool = False
    """Templates escape each value for the place where it stands."""


PLAIN: Final = MessageStyle()
SLACK: Final = MessageStyle(escape_slack, escape_slack, _escape_slack_annotation, _escape_slack_link)
MARKDOWN: Final = MessageStyle(_escape_markdown, _escape_markdown_label, link=_quote_link)
HTML: Final = MessageStyle(html.escape, is_html=True)


class FittedText(NamedTuple):
    text: str
    told: Told
    """The alerts that it has in full."""


def fit_alerts(
    notification: Notification, render: Callable[[int], str], shorten: Callable[[str], str] = str
) -> FittedText:
    """A default message with as many whole alerts as its channel takes. `render` gets how many alerts to list;
    `shorten` returns a text that the channel takes as it is."""
    whole = render(MAX_LISTED)
    if shorten(whole) == whole:
        return FittedText(whole, listed_alerts(notification))

    def is_too_long(count: int) -> bool:
        text = render(count)
        return shorten(text) != text

    counts = range(1, min(MAX_LISTED, len(notification.alerts)))
    count = bisect_left(counts, True, key=is_too_long)
    if count == 0:
        return FittedText(shorten(whole), NOBODY_TOLD)
    return FittedText(render(count), listed_alerts(notification, count))


class Messages:
    """The texts of all receivers. For several threads at once: what is shared does not change."""

    def __init__(self, definitions: str, files: Sequence[Path] = (), limits: Limits | None = None) -> None:
        """`definitions` are the default messages, `files` those of the user."""
        self._limits = limits or Limits()
        self._functions = alertmanager_functions()
        defaults = parse(definitions, "default.tmpl", self._functions, limits=self._limits)
        self._base = self._read(files, defaults)
        self._calls = {name: _calls(defaults, name) for name in defaults.trees}
        replaced = {name for name, tree in self._base.trees.items() if defaults.trees.get(name) is not tree}
        self._defaults = frozenset(name for name, calls in self._calls.items() if not calls & replaced)
        """Names of default messages no part of which a file replaces."""
        self._lists = frozenset(name for name in defaults.trees if ".Listed" in _source(defaults, name))
        """Names of default messages that list alerts; the others have their number at most."""
        self._parsed: dict[str, Template] = {}

    def _read(self, files: Iterable[Path], base: Template) -> Template:
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
        return base

    def check(self, text: str) -> None:
        """ValueError if `text` is not a template."""
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

    def expand(
        self, text: str, notification: Notification, style: MessageStyle = PLAIN, max_listed: int = MAX_LISTED
    ) -> str:
        if "{{" not in text:
            return text
        now = go_time_value(notification.sent_at)

        def route_label(name: str) -> str:
            return notification.route_labels.get(name, "")

        functions = alertmanager_functions(lambda: now, route_label)
        try:
            template = self._parse(text)
            data = _template_data(notification, style, max_listed)
            return (template.expand_html if style.is_html else template.expand)(data, functions)
        except TemplateError as error:
            raise SendError(f"template {text[:100]!r}: {error.message}", may_retry=False) from None

    def title(self, text: str, notification: Notification, style: MessageStyle = PLAIN) -> str:
        """As `expand`; a default is plain text, and escaped as a whole."""
        if not self.is_default(text):
            return self.expand(text, notification, style)
        return style.text(self.expand(text, notification))

    def fit(
        self,
        text: str,
        notification: Notification,
        shorten: Callable[[str], str] = str,
        style: MessageStyle = PLAIN,
    ) -> FittedText:
        """As `expand`, and which alerts it tells. What a user's template says of an alert is the user's choice;
        one that had to be cut tells nobody for certain."""
        name = self._default_name(text)
        if self._calls.get(name, frozenset()) & self._lists:
            return fit_alerts(notification, lambda most: self.expand(text, notification, style, most), shorten)
        expanded = self.expand(text, notification, style)
        shortened = shorten(expanded)
        is_about_alerts = "{{" in text and not name and bool(expanded.strip())
        is_told = is_about_alerts and shortened == expanded
        return FittedText(shortened, notification.fingerprints if is_told else NOBODY_TOLD)

    def is_default(self, text: str) -> bool:
        """Whether it is one of our messages, and not replaced by a file."""
        return bool(self._default_name(text))

    def _default_name(self, text: str) -> str:
        match = _ONE_TEMPLATE.fullmatch(text.strip())
        return match[1] if match is not None and match[1] in self._defaults else ""

    def expand_route_labels(self, notification: Notification) -> dict[str, str]:
        """Its route labels as they are sent. One whose template fails is left out, as in Alertmanager."""
        expanded: dict[str, str] = {}
        for name, value in notification.route_labels.items():
            try:
                expanded[name] = self._expand_route_label(name, notification) if "{{" in value else value
            except TemplateError as error:
                log.error(
                    "label %r of the route of receiver %r cannot be expanded: %s",
                    name,
                    notification.receiver,
                    error.message,
                )
        return expanded

    def _expand_route_label(self, name: str, notification: Notification) -> str:
        data, now = _template_data(notification, PLAIN, MAX_LISTED), go_time_value(notification.sent_at)
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

        return resolve(name)


def _source(template: Template, name: str) -> str:
    tree = template.trees.get(name)
    return "" if tree is None or tree.root is None else tree.root.source()


def _calls(template: Template, name: str) -> frozenset[str]:
    """The templates that one calls, itself included."""
    called: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in called:
            called.add(name)
            waiting += _CALL.findall(_source(template, name))
    return frozenset(called)


def go_time_value(seconds: float | None) -> GoTime:
    return _ZERO_TIME if seconds is None else GoTime(round(seconds * 1_000_000) * 1000)


@dataclass(frozen=True, kw_only=True)
class _AlertData(TemplateAlert):
    """With what only gpuscope has: see default.tmpl."""

    alert: StoredAlert
    style: MessageStyle
    external_url: str

    def go_methods(self) -> Mapping[str, GoFunction]:
        return self._own_methods

    @cached_property
    def _own_methods(self) -> Mapping[str, GoFunction]:
        text, link = (str if self.style.is_html else self.style.text), self.style.link
        name = text(alert_name(self.alert))
        rows = rows_of(self.alert, is_resolved=self.status == RESOLVED)
        links = Pairs(Pair(title, link(url)) for title, url in links_of(self.alert, self.external_url))
        pairs = Pairs(Pair(title, text(value)) for title, value in rows)
        return {
            "Name": GoFunction((), lambda: name),
            "Rows": GoFunction((), lambda: pairs),
            "Links": GoFunction((), lambda: links),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _MessageData(NotificationData):
    page_url: str

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {"PageURL": GoFunction((), lambda: self.page_url)}


def _template_data(notification: Notification, style: MessageStyle, max_listed: int) -> NotificationData:
    known = notification.template_data
    data: _MessageData = known.get(style) or known.setdefault(style, _make_data(notification, style))
    alerts = AlertList(data.alerts)
    alerts.max_listed = max_listed
    return replace(data, alerts=alerts)


def _make_data(notification: Notification, style: MessageStyle) -> _MessageData:
    def labels(values: Mapping[str, str]) -> KeyValues:
        return KeyValues({name: style.label(value) for name, value in values.items()})

    def annotations(values: Mapping[str, str]) -> KeyValues:
        return KeyValues({name: style.annotation(value) for name, value in values.items()})

    return _MessageData(
        receiver=notification.receiver_pattern,
        status=notification.status,
        alerts=AlertList(
            _AlertData(
                status=notification.status_of(alert),
                labels=labels(alert.labels),
                annotations=annotations(alert.annotations),
                starts_at=go_time_value(alert.starts_at),
                ends_at=go_time_value(alert.ends_at if alert.is_resolved(notification.sent_at) else None),
                generator_url=alert.generator_url,
                fingerprint=alert.fingerprint,
                alert=alert,
                style=style,
                external_url=notification.external_url,
            )
            for alert in notification.alerts
        ),
        notification_reason=notification.reason.value,
        group_labels=labels(notification.group_labels),
        common_labels=labels(notification.common_labels),
        common_annotations=annotations(notification.common_annotations),
        route_labels=labels(notification.route_labels),
        external_url=notification.external_url,
        page_url=page_link(notification),
    )
