"""The messages that are sent without a template: which GPU, whose, since when, what it means, what to do.

Rows whose label is absent are left out. Every channel has its own escaping, applied to every label and
annotation (`Markup`); markup of the message itself is added after it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote as quote_url
from urllib.parse import urlsplit

from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.channels import Told
from gpuscope.judge.notify.notification import FIRING, MAX_LISTED, MessageAlert, Notification

MAX_VALUE_CHARACTERS = 1000
MAX_NAME_CHARACTERS = 253
"""Of a node: the longest host name."""
Escape = Callable[[str], str]

ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Node", ("node", "hostname", "Hostname", "instance")),
    ("GPU", ("gpu", "minor_number")),
    ("Model", ("model", "modelName", "gpu_model")),
    ("UUID", ("uuid", "UUID")),
    ("Owner", ("owner", "user", "account")),
    ("Job", ("job_id", "slurm_job", "slurm_job_id", "jobid")),
    ("Namespace", ("namespace", "exported_namespace")),
    ("Pod", ("pod", "exported_pod")),
    ("Container", ("container", "exported_container")),
    ("XID", ("xid",)),
    ("Severity", ("severity",)),
)
"""A row's title, and the labels it is taken from: the first one that the alert has."""
ANNOTATED_ROWS = {"Node": "node", "GPU": "gpu", "Model": "model", "Owner": "owner", "Job": "job"}
"""Rows for which an annotation says more than the label: shipped rules look up node, model and owner."""
MEANING = ("description", "message")
NEXT_STEP = ("next", "next_step", "action", "remedy")
_LOOKED_UP_GPU = re.compile(r"(?P<Node>.+?) GPU (?P<GPU>\d+)(?: \((?P<Model>.+)\))?")
"""The annotation `gpu` of shipped rules: `node-3 GPU 0 (NVIDIA H100)`."""


SUBJECT_LABELS = ("severity", "node", "instance", "gpu", "user", "namespace", "pod", "job_id")


def subject(notification: Notification) -> str:
    """`[FIRING:2] GpuXidHardware (critical node-3)`: one line, with the labels that all alerts share."""
    count = f":{len(notification.firing)}" if notification.status == FIRING else ""
    group, common = notification.group_labels, notification.common_labels
    words = [group[name] for name in sorted(group, key=lambda name: (name != "alertname", name))]
    rest = [
        _subject_word(name, common[name]) for name in SUBJECT_LABELS if name in common and name not in group
    ]
    extra = f"({' '.join(rest)})" if rest else ""
    return _cut(f"[{notification.status.upper()}{count}] {' '.join(words)} {extra}")


def _subject_word(name: str, value: str) -> str:
    """A number alone does not say what it counts."""
    return f"GPU {value}" if name == "gpu" and value.isdigit() else value


def page_link(notification: Notification) -> str:
    return f"{notification.external_url}/#/alerts?receiver={quote_url(notification.receiver, safe='')}"


def rows_of(alert: MessageAlert) -> Iterator[tuple[str, str]]:
    """Title and text: what it is about, since when, what it means, the next step."""
    labels, annotations = alert.labels, alert.annotations
    if annotations.get("summary"):
        yield "Summary", _cut(annotations["summary"])
    looked_up = _looked_up(annotations)
    for title, names in ROWS:
        value = looked_up.get(title) or next((labels[name] for name in names if labels.get(name)), "")
        if value:
            yield title, _cut(value)
    yield "Since", to_rfc3339(alert.starts_at, "seconds")
    if alert.ends_at is not None:
        yield "Resolved", to_rfc3339(alert.ends_at, "seconds")
    meaning = [annotations[name] for name in MEANING if annotations.get(name)]
    next_step = [annotations[name] for name in NEXT_STEP if annotations.get(name)]
    runbook = [annotations.get("runbook", ""), web_link(annotations.get("runbook_url", ""))]
    for title, texts in (("Meaning", meaning), ("Next step", next_step), ("Runbook", runbook)):
        value = next(filter(None, texts), "")
        if value:
            yield title, _cut(value)


def _looked_up(annotations: Mapping[str, str]) -> dict[str, str]:
    """Texts of rows that annotations give, by title."""
    found = {title: annotations.get(name, "") for title, name in ANNOTATED_ROWS.items()}
    parts = _LOOKED_UP_GPU.fullmatch(found["GPU"][:MAX_VALUE_CHARACTERS])
    if parts is not None:
        found |= {title: text for title, text in parts.groupdict().items() if text}
    return found


def subject_link(alert: MessageAlert, external_url: str) -> str:
    """The page of the GPU or node that the alert is about; empty if it names neither."""
    uuid, node = gpu_uuid(alert), _looked_up(alert.annotations)["Node"] or alert.labels.get("node", "")
    view, name = ("gpu", uuid) if uuid else ("node", node)
    is_name = 0 < len(name) <= MAX_NAME_CHARACTERS
    return web_link(f"{external_url}/#/{view}/{quote_url(name, safe='')}") if is_name else ""


def gpu_uuid(alert: MessageAlert) -> str:
    """Empty where the label `uuid` is that of a disk or a pod: alerts may come from anywhere."""
    uuid = alert.labels.get("uuid", "")
    return uuid if uuid.startswith(("GPU-", "MIG-")) else ""


def _cut(value: str) -> str:
    """One line without control characters, not too long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"


def alert_name(alert: MessageAlert) -> str:
    return _cut(alert.labels.get("alertname", "alert"))


def web_link(url: str) -> str:
    """The URL if a browser may be sent there; a rule's expression could be `javascript:…`."""
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def escape_slack(text: str) -> str:
    """No link, mention or `<!channel>` can start without a `<`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_markdown(text: str) -> str:
    """Of Discord and Teams."""
    return "".join(f"\\{c}" if c in "\\`*_[]#<>|~@" else c for c in text)


def _quote_link(url: str) -> str:
    """Without the characters that could end a link."""
    return "".join(c if c.isalnum() or c in "-._~:/?#@!$&*+,;=%" else quote_url(c, safe="") for c in url)


@dataclass(frozen=True, slots=True)
class Markup:
    """How a channel writes text, bold text and links; `link` gets a title and a URL."""

    escape: Escape = str
    bold: Escape = str
    link: Callable[[str, str], str] = lambda title, url: f"{title}: {url}"


PLAIN = Markup()
SLACK = Markup(
    escape_slack, lambda text: f"*{text}*", lambda title, url: f"<{escape_slack(_quote_link(url))}|{title}>"
)
MARKDOWN = Markup(
    escape_markdown, lambda text: f"**{text}**", lambda title, url: f"[{title}]({_quote_link(url)})"
)
TELEGRAM = Markup(
    html.escape,
    lambda text: f"<b>{text}</b>",
    lambda title, url: f'<a href="{html.escape(url)}">{title}</a>',
)


def listed_alerts(notification: Notification) -> Told:
    """Those that a default message has in full: a long text of an alert is cut in every message."""
    most = notification.max_listed
    listed = [*notification.firing[:most], *notification.resolved[:most]]
    return Told(alert.fingerprint for alert in listed if not _is_cut(alert))


def _is_cut(alert: MessageAlert) -> bool:
    values = (*alert.labels.values(), *alert.annotations.values())
    return any(len(value) > MAX_VALUE_CHARACTERS for value in values)


def alert_lines(
    alerts: Sequence[MessageAlert], markup: Markup = PLAIN, external_url: str = "", most: int = MAX_LISTED
) -> str:
    """One paragraph per alert."""
    paragraphs = []
    for alert in alerts[:most]:
        lines = [markup.bold(markup.escape(alert_name(alert)))]
        lines += [f"- {title}: {markup.escape(text)}" for title, text in rows_of(alert)]
        lines += [f"- {markup.link(title, link)}" for title, link in _links(alert, external_url)]
        paragraphs.append("\n".join(lines))
    if len(alerts) > most:
        paragraphs.append(f"and {len(alerts) - most} more")
    return "\n\n".join(paragraphs)


def _links(alert: MessageAlert, external_url: str) -> Iterator[tuple[str, str]]:
    if link := subject_link(alert, external_url):
        yield ("GPU page" if gpu_uuid(alert) else "Node page"), link
    if link := web_link(alert.generator_url):
        yield "Expression", link


def body(notification: Notification, markup: Markup = PLAIN) -> str:
    """The whole message: firing alerts, resolved ones, and the link to the page."""
    parts = []
    for title, alerts in (("Firing", notification.firing), ("Resolved", notification.resolved)):
        if alerts:
            lines = alert_lines(alerts, markup, notification.external_url, notification.max_listed)
            parts.append(f"{markup.bold(title)}\n{lines}")
    if link := web_link(page_link(notification)):
        parts.append(markup.link("All alerts", link))
    return "\n\n".join(parts)


def plain_body(notification: Notification) -> str:
    return body(notification)


def slack_body(notification: Notification) -> str:
    return body(notification, SLACK)


def markdown_body(notification: Notification) -> str:
    return body(notification, MARKDOWN)


def telegram_body(notification: Notification) -> str:
    return body(notification, TELEGRAM)


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
        url = notification.external_url
        most = notification.max_listed
        parts += [_html_alert(alert, url) for alert in alerts[:most]]
        if len(alerts) > most:
            parts.append(f"<p>and {len(alerts) - most} more</p>")
    link = html.escape(web_link(page_link(notification)))
    parts.append(f'<p><a href="{link}">All alerts</a></p></body></html>')
    return "\n".join(parts)


def _html_alert(alert: MessageAlert, external_url: str) -> str:
    rows = "".join(
        f'<tr><td style="padding-right:1em;color:#666">{title}</td><td>{html.escape(text)}</td></tr>'
        for title, text in rows_of(alert)
    )
    links = " · ".join(
        f'<a href="{html.escape(link)}">{title}</a>' for title, link in _links(alert, external_url)
    )
    shown = f"<p>{links}</p>" if links else ""
    return f"<p><b>{html.escape(alert_name(alert))}</b></p><table>{rows}</table>{shown}"
