"""What is said of an alert in a default message: which GPU, whose, since when, what it means, what to do.

Output: titles with their texts (`rows_of`) and with their URLs (`links_of`); a row whose label is absent is
left out. The layout is in `default.tmpl` and in the channels' templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlsplit

from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.alert_store import StoredAlert
from gpuscope.judge.notify.channel import Told
from gpuscope.judge.notify.notification import Notification

MAX_LISTED = 20
"""Alerts of each status in a default message: most channels would refuse one with 10,000."""
MAX_VALUE_CHARACTERS = 1000
MAX_NAME_CHARACTERS = 253
"""Of a node: the longest host name."""

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


def alert_name(alert: StoredAlert) -> str:
    return one_line(alert.labels.get("alertname", "alert"))


def rows_of(alert: StoredAlert, *, is_resolved: bool) -> Iterator[tuple[str, str]]:
    """Title and text: what it is about, since when, what it means, the next step."""
    labels, annotations = alert.labels, alert.annotations
    if annotations.get("summary"):
        yield "Summary", one_line(annotations["summary"])
    annotated = _annotated_rows(annotations)
    for title, names in ROWS:
        value = annotated.get(title) or next((labels[name] for name in names if labels.get(name)), "")
        if value:
            yield title, one_line(value)
    yield "Since", to_rfc3339(alert.starts_at, "seconds")
    if is_resolved:
        yield "Resolved", to_rfc3339(alert.ends_at, "seconds")
    meaning = [annotations[name] for name in MEANING if annotations.get(name)]
    next_step = [annotations[name] for name in NEXT_STEP if annotations.get(name)]
    runbook = [annotations.get("runbook", ""), web_link(annotations.get("runbook_url", ""))]
    for title, texts in (("Meaning", meaning), ("Next step", next_step), ("Runbook", runbook)):
        value = next(filter(None, texts), "")
        if value:
            yield title, one_line(value)


def _annotated_rows(annotations: Mapping[str, str]) -> dict[str, str]:
    """Texts of rows that annotations give, by title."""
    texts = {title: annotations.get(name, "") for title, name in ANNOTATED_ROWS.items()}
    parts = _LOOKED_UP_GPU.fullmatch(texts["GPU"][:MAX_VALUE_CHARACTERS])
    if parts is not None:
        texts |= {title: text for title, text in parts.groupdict().items() if text}
    return texts


def links_of(alert: StoredAlert, external_url: str) -> Iterator[tuple[str, str]]:
    """Title and URL: the page of the GPU or node that the alert is about, and its expression."""
    uuid = alert.labels.get("uuid", "")
    is_gpu = uuid.startswith(("GPU-", "MIG-"))  # alerts may come from anywhere: it may be that of a disk
    node = _annotated_rows(alert.annotations)["Node"] or alert.labels.get("node", "")
    title, view, name = ("GPU page", "gpu", uuid) if is_gpu else ("Node page", "node", node)
    if 0 < len(name) <= MAX_NAME_CHARACTERS and web_link(external_url):
        yield title, f"{external_url}/#/{view}/{quote(name, safe='')}"
    if link := web_link(alert.generator_url):
        yield "Expression", link


def page_link(notification: Notification) -> str:
    return f"{notification.external_url}/#/alerts?receiver={quote(notification.receiver, safe='')}"


def web_link(url: str) -> str:
    """The URL if a browser may be sent there; a rule's expression could be `javascript:…`."""
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def one_line(value: str) -> str:
    """Without control characters, and not too long."""
    printable = value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
    text = " ".join(printable.split())
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"


def listed_alerts(notification: Notification, most: int = MAX_LISTED) -> Told:
    """Those that a default message has in full: a long text of an alert is cut in every message."""
    listed = [*notification.firing[:most], *notification.resolved[:most]]
    return Told(alert.fingerprint for alert in listed if not _is_cut(alert))


def _is_cut(alert: StoredAlert) -> bool:
    values = (*alert.labels.values(), *alert.annotations.values())
    return any(len(value) > MAX_VALUE_CHARACTERS for value in values)
