"""Metric families become Prometheus text 0.0.4 or OpenMetrics 1.0.

Strict on purpose: a family's HELP and TYPE stand once, a series stands once, every label value and help text
is escaped here and nowhere else. Whatever a builder does wrong (a second family of the same name, a series
twice) is left out and reported, so that one bad series never costs the scrape.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable

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


class Encoder:
    """Encodes cycle after cycle; a family that says what it said in the last cycle keeps its bytes.

    Most of a GPU's numbers are read once a minute, so most blocks are only compared. A family's samples must
    therefore not be changed once they were given here.
    """

    def __init__(self, head: Callable[[MetricFamily], str], end: bytes = b"") -> None:
        self._head = head
        self._end = end
        self._blocks: dict[str, tuple[MetricFamily, bytes]] = {}

    def encode(self, families: Iterable[MetricFamily]) -> bytes:
        known = self._blocks
        blocks: dict[str, tuple[MetricFamily, bytes]] = {}
        for family in families:
            name, before = family.name, known.get(family.name)
            if before is not None and before[0] == family and name not in blocks:
                blocks[name] = before
            elif _acceptable(family, blocks):
                blocks[name] = family, self._block(family)
        self._blocks = blocks
        return b"".join([block for _, block in blocks.values()] + [self._end])

    def _block(self, family: MetricFamily) -> bytes:
        return "\n".join((self._head(family), *_series_lines(family), "")).encode("utf-8", "replace")


def text_encoder() -> Encoder:
    """Prometheus text 0.0.4."""
    return Encoder(_text_head)


def openmetrics_encoder() -> Encoder:
    """OpenMetrics 1.0: a counter's family is named without `_total`, an info's without `_info`."""
    return Encoder(_openmetrics_head, end=b"# EOF\n")


def encode_text(families: Iterable[MetricFamily]) -> bytes:
    return text_encoder().encode(families)


def encode_openmetrics(families: Iterable[MetricFamily]) -> bytes:
    return openmetrics_encoder().encode(families)


def _text_head(family: MetricFamily) -> str:
    kind = "gauge" if family.type == "info" else family.type
    return f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {kind}"


def _openmetrics_head(family: MetricFamily) -> str:
    name, kind = _openmetrics_name(family)
    return f"# HELP {name} {family.help.translate(_VALUE_ESCAPES)}\n# TYPE {name} {kind}"


def _openmetrics_name(family: MetricFamily) -> tuple[str, str]:
    if family.type == "counter" and family.name.endswith("_total"):
        return family.name.removesuffix("_total"), "counter"
    if family.type == "info" and family.name.endswith("_info"):
        return family.name.removesuffix("_info"), "info"
    if family.type in ("counter", "untyped", "info"):  # without its suffix it may not be called a counter
        return family.name, "unknown"
    return family.name, family.type


def _acceptable(family: MetricFamily, seen: Container[str]) -> bool:
    if not family.samples:
        return False
    if family.name in seen:
        log.error("metric %s was built twice; the second is left out", family.name)
        return False
    if not _METRIC_NAME.match(family.name):
        log.error("not a metric name, left out: %r", family.name)
        return False
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
