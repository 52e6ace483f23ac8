"""The messages that are sent without a template: which GPU, whose, since when, what it means, what to do.

Rows whose label is absent are left out. `escape` is the channel's own escaping, applied to every label and
annotation; markup of the message itself is added after it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import quote as quote_url
from urllib.parse import urlsplit

from gpuscope.notify.notification import FIRING, MessageAlert, Notification
from gpuscope.rfc3339 import to_rfc3339

MAX_LISTED_ALERTS = 20
"""A message with 10,000 alerts would be refused by most channels."""
MAX_VALUE_CHARACTERS = 1000
Escape = Callable[[str], str]

ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Node", ("node", "hostname", "Hostname", "instance")),
    ("GPU", ("gpu", "minor_number")),
    ("Model", ("model", "modelName", "gpu_model")),
    ("UUID", ("uuid", "UUID")),
    ("Owner", ("owner", "user", "account")),
    ("Job", ("job_id", "slurm_job_id", "jobid")),
    ("Namespace", ("namespace", "exported_namespace")),
    ("Pod", ("pod", "exported_pod")),
    ("Container", ("container", "exported_container")),
    ("XID", ("xid",)),
    ("Severity", ("severity",)),
)
"""A row's title, and the labels it is taken from: the first one that the alert has."""
MEANING = ("summary", "description", "message")
NEXT_STEP = ("next", "next_step", "action", "remedy")
RUNBOOK = ("runbook_url", "runbook")


def subject(notification: Notification) -> str:
    """`[FIRING:2] GpuXidHardware (critical node-3)`, as Alertmanager writes it."""
    count = f":{len(notification.firing)}" if notification.status == FIRING else ""
    group = " ".join(_ordered_values(notification.group_labels))
    rest = {
        name: value
        for name, value in notification.common_labels.items()
        if name not in notification.group_labels
    }
    extra = f"({' '.join(_ordered_values(rest))})" if rest else ""
    return f"[{notification.status.upper()}{count}] {group} {extra}".strip()


def _ordered_values(labels: Mapping[str, str]) -> list[str]:
    return [labels[name] for name in sorted(labels, key=lambda name: (name != "alertname", name))]


def page_link(notification: Notification) -> str:
    return f"{notification.external_url}/#/alerts?receiver={quote_url(notification.receiver, safe='')}"


def rows_of(alert: MessageAlert) -> Iterator[tuple[str, str]]:
    """Title and text: what it is about, since when, what it means, the next step."""
    for title, names in ROWS:
        value = next((alert.labels[name] for name in names if alert.labels.get(name)), "")
        if value:
            yield title, _cut(value)
    yield "Since", to_rfc3339(alert.starts_at, "seconds")
    if alert.ends_at is not None:
        yield "Resolved", to_rfc3339(alert.ends_at, "seconds")
    for name in MEANING:
        if alert.annotations.get(name):
            yield ("Meaning" if name != "summary" else "Summary"), _cut(alert.annotations[name])
    for title, names in (("Next step", NEXT_STEP), ("Runbook", RUNBOOK)):
        value = next((alert.annotations[name] for name in names if alert.annotations.get(name)), "")
        if value:
            yield title, _cut(value)


def _cut(value: str) -> str:
    text = " ".join(value.split())
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"


def alert_name(alert: MessageAlert) -> str:
    return _cut(alert.labels.get("alertname", "alert"))


def web_link(url: str) -> str:
    """The URL if a browser may be sent there; a rule's expression could be `javascript:…`."""
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def alert_lines(
    alerts: Sequence[MessageAlert], escape: Escape, *, bold: Escape = str, bullet: str = "- "
) -> str:
    """One paragraph per alert."""
    paragraphs = []
    for alert in alerts[:MAX_LISTED_ALERTS]:
        lines = [bold(escape(alert_name(alert)))]
        lines += [f"{bullet}{title}: {escape(text)}" for title, text in rows_of(alert)]
        if link := web_link(alert.generator_url):
            lines.append(f"{bullet}Source: {escape(link)}")
        paragraphs.append("\n".join(lines))
    if len(alerts) > MAX_LISTED_ALERTS:
        paragraphs.append(f"and {len(alerts) - MAX_LISTED_ALERTS} more")
    return "\n\n".join(paragraphs)


def body(notification: Notification, escape: Escape, *, bold: Escape = str, with_link: bool = True) -> str:
    """The whole message: firing alerts, resolved ones, and the link to the page."""
    parts = []
    for title, alerts in (("Firing", notification.firing), ("Resolved", notification.resolved)):
        if alerts:
            parts.append(f"{bold(title)}\n{alert_lines(alerts, escape, bold=bold)}")
    if with_link:
        parts.append(escape(page_link(notification)))
    return "\n\n".join(parts)


def plain_body(notification: Notification) -> str:
    return body(notification, str)


def slack_body(notification: Notification) -> str:
    return body(notification, escape_slack, bold=lambda text: f"*{text}*", with_link=False)


def markdown_body(notification: Notification) -> str:
    return body(notification, escape_markdown, bold=lambda text: f"**{text}**")


def telegram_body(notification: Notification) -> str:
    return body(notification, html.escape, bold=lambda text: f"<b>{text}</b>")


def html_body(notification: Notification) -> str:
    """A whole HTML document, with styles inline: mail programs drop the others."""
    parts = [
        '<!doctype html><html><head><meta charset="utf-8"></head>'
        '<body style="font-family:sans-serif;font-size:14px;color:#222">',
        f"<h2>{html.escape(subject(notification))}</h2>",
    ]
    groups = (("Firing", "#c62828", notification.firing), ("Resolved", "#2e7d32", notification.resolved))
    for title, colour, alerts in groups:
        if not alerts:
            continue
        parts.append(f'<h3 style="color:{colour}">{title}</h3>')
        parts += [_html_alert(alert) for alert in alerts[:MAX_LISTED_ALERTS]]
        if len(alerts) > MAX_LISTED_ALERTS:
            parts.append(f"<p>and {len(alerts) - MAX_LISTED_ALERTS} more</p>")
    link = html.escape(web_link(page_link(notification)))
    parts.append(f'<p><a href="{link}">Open in gpuscope</a></p></body></html>')
    return "\n".join(parts)


def _html_alert(alert: MessageAlert) -> str:
    rows = "".join(
        f'<tr><td style="padding-right:1em;color:#666">{title}</td><td>{html.escape(text)}</td></tr>'
        for title, text in rows_of(alert)
    )
    link = html.escape(web_link(alert.generator_url))
    source = f'<p><a href="{link}">Source</a></p>' if link else ""
    return f"<p><b>{html.escape(alert_name(alert))}</b></p><table>{rows}</table>{source}"


def escape_slack(text: str) -> str:
    """No link, mention or `<!channel>` can start without a `<`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_markdown(text: str) -> str:
    """Of Discord and Teams."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#<>|~@" else c for c in text)
