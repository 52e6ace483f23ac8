"""Metric families become Prometheus text 0.0.4 or OpenMetrics 1.0.

Strict on purpose: a family's HELP and TYPE stand once, a series stands once, every label value and help text
is escaped here and nowhere else. Whatever a builder does wrong (a second family of the same name, a series
twice) is left out and reported, so that one bad series never costs the scrape.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from gpuscope.metrics.sample import LabelSet, MetricFamily

log = logging.getLogger("gpuscope.exposition")

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def escape_label_value(value: str) -> str:
    # Lone surrogates come from undecodable file names and cannot be sent; everything else can.
    return value.translate(_VALUE_ESCAPES).encode("utf-8", "replace").decode("utf-8")


def labels_text(labels: LabelSet) -> str:
    """`{gpu="0",uuid="GPU-…"}`, or nothing for no labels; made once per label set."""
    if labels.text is None:
        for name, _ in labels.pairs:
            if not _LABEL_NAME.match(name):
                raise ValueError(f"not a label name: {name!r}")
        pairs = ",".join(f'{name}="{escape_label_value(value)}"' for name, value in labels.pairs)
        labels.text = f"{{{pairs}}}" if pairs else ""
    return labels.text


def encode_text(families: Iterable[MetricFamily]) -> bytes:
    """Prometheus text 0.0.4."""
    lines: list[str] = []
    seen: set[str] = set()
    for family in families:
        if _acceptable(family, seen):
            lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {family.name} {'gauge' if family.type == 'info' else family.type}")
            lines += _series_lines(family)
    lines.append("")
    return "\n".join(lines).encode("utf-8", "replace")


def encode_openmetrics(families: Iterable[MetricFamily]) -> bytes:
    """OpenMetrics 1.0: a counter's family is named without `_total`, an info's without `_info`."""
    lines: list[str] = []
    seen: set[str] = set()
    for family in families:
        name, kind = _openmetrics_name(family)
        if _acceptable(family, seen):
            lines.append(f"# HELP {name} {family.help.translate(_VALUE_ESCAPES)}")
            lines.append(f"# TYPE {name} {kind}")
            lines += _series_lines(family)
    lines.append("# EOF\n")
    return "\n".join(lines).encode("utf-8", "replace")


def _openmetrics_name(family: MetricFamily) -> tuple[str, str]:
    if family.type == "counter" and family.name.endswith("_total"):
        return family.name.removesuffix("_total"), "counter"
    if family.type == "info" and family.name.endswith("_info"):
        return family.name.removesuffix("_info"), "info"
    if family.type in ("counter", "untyped", "info"):  # without its suffix it may not be called a counter
        return family.name, "unknown"
    return family.name, family.type


def _acceptable(family: MetricFamily, seen: set[str]) -> bool:
    if not family.samples:
        return False
    if family.name in seen:
        log.error("metric %s was built twice; the second is left out", family.name)
        return False
    if not _METRIC_NAME.match(family.name):
        log.error("not a metric name, left out: %r", family.name)
        return False
    seen.add(family.name)
    return True


def _series_lines(family: MetricFamily) -> list[str]:
    name, number = family.name, family.number
    lines = [f"{name}{labels.text or labels_text(labels)} {number(value)}" for labels, value in family.samples]
    if len(lines) > 1 and len({labels.text for labels, _ in family.samples}) < len(lines):
        lines = _without_duplicates(family, lines)
    return lines


def _without_duplicates(family: MetricFamily, lines: list[str]) -> list[str]:
    seen: set[frozenset[tuple[str, str]]] = set()
    kept = []
    for (labels, _), line in zip(family.samples, lines, strict=True):
        if (key := frozenset(labels.pairs)) not in seen:
            seen.add(key)
            kept.append(line)
    log.error("metric %s: %d series stood twice and are left out", family.name, len(lines) - len(kept))
    return kept
