"""Encodes metric families as Prometheus text 0.0.4 or OpenMetrics 1.0.

HELP, TYPE and each series are written once; label values and help texts are escaped only here. A builder's
errors (two families of one name, duplicate series) are left out and logged, so that one bad series does not
invalidate the scrape.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.base.files import WORLD_READABLE, write_atomically
from gpuscope.model.exposition.sample import LabelSet, MetricFamily

log = logging.getLogger("gpuscope.exposition")

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def escape_label_value(value: str) -> str:
    escaped = value.translate(_VALUE_ESCAPES)
    # Lone surrogates come from undecodable file names and cannot be encoded as UTF-8.
    return escaped if escaped.isascii() else escaped.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1024)  # a cluster has tens of thousands of label sets of a few names
def _is_label_name(name: str) -> bool:
    return _LABEL_NAME.match(name) is not None


def labels_text(labels: LabelSet) -> str:
    """`{gpu="0",uuid="GPU-…"}`, or an empty string without labels; built once per label set."""
    if labels.text is None:
        for name, _ in labels.pairs:
            if not _is_label_name(name):
                raise ValueError(f"invalid label name: {name!r}")
        pairs = ",".join([f'{name}="{escape_label_value(value)}"' for name, value in labels.pairs])
        labels.text = f"{{{pairs}}}" if pairs else ""
    return labels.text


class Encoder:
    """Encodes families every cycle; an unchanged family reuses the bytes of the last cycle.

    Most numbers of a GPU are read once a minute, so most families are only compared. The samples of a family
    must therefore not be modified after `encode`.
    """

    def __init__(self, head: Callable[[MetricFamily, Container[str]], str], end: bytes = b"") -> None:
        self._head = head
        self.end = end
        self._blocks: dict[str, tuple[MetricFamily, bytes]] = {}

    def encode(self, families: Iterable[MetricFamily]) -> bytes:
        return self.encode_part(families) + self.end

    def encode_part(self, families: Iterable[MetricFamily]) -> bytes:
        """Without `end`: more blocks may follow."""
        families = list(families)
        names = {family.name for family in families}
        known = self._blocks
        blocks: dict[str, tuple[MetricFamily, bytes]] = {}
        for family in families:
            name, before = family.name, known.get(family.name)
            if before is not None and before[0] == family and name not in blocks:
                blocks[name] = before
            elif _acceptable(family, blocks):
                blocks[name] = family, self.block(family, names)
        self._blocks = blocks
        return b"".join([block for _, block in blocks.values()])

    def forget(self) -> None:
        """Drops the families and bytes of the last cycle; the next one is encoded as a whole."""
        self._blocks = {}

    def block(self, family: MetricFamily, names: Container[str] = ()) -> bytes:
        """`names` are those of all families of the exposition."""
        return "\n".join((self._head(family, names), *_series_lines(family), "")).encode("utf-8", "replace")


def text_encoder() -> Encoder:
    """Prometheus text 0.0.4."""
    return Encoder(_text_head)


def openmetrics_encoder() -> Encoder:
    """OpenMetrics 1.0: the family name of a counter has no `_total`, that of an info no `_info`."""
    return Encoder(_openmetrics_head, end=b"# EOF\n")


def encode_text(families: Iterable[MetricFamily]) -> bytes:
    return text_encoder().encode(families)


def encode_openmetrics(families: Iterable[MetricFamily]) -> bytes:
    return openmetrics_encoder().encode(families)


def _text_head(family: MetricFamily, names: Container[str]) -> str:
    kind = "gauge" if family.type == "info" else family.type
    return f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {kind}"


def _openmetrics_head(family: MetricFamily, names: Container[str]) -> str:
    name, kind = _openmetrics_name(family, names)
    return f"# HELP {name} {family.help.translate(_VALUE_ESCAPES)}\n# TYPE {name} {kind}"


def _openmetrics_name(family: MetricFamily, names: Container[str]) -> tuple[str, str]:
    if family.type == "counter" and family.name.endswith("_total"):
        name = family.name.removesuffix("_total")
        # A foreign gauge may have this name: parsers refuse two families of one name.
        return (name, "counter") if name not in names else (family.name, "unknown")
    if family.type == "info" and family.name.endswith("_info"):
        return family.name.removesuffix("_info"), "info"
    if family.type in ("counter", "untyped", "info"):  # a counter without the suffix is not allowed
        return family.name, "unknown"
    return family.name, family.type


def _acceptable(family: MetricFamily, seen: Container[str]) -> bool:
    if not family.samples:
        return False
    if family.name in seen:
        log.error("metric %s was built twice; the second one is left out", family.name)
        return False
    if not _METRIC_NAME.match(family.name):
        log.error("invalid metric name %r; the metric is left out", family.name)
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
    log.error("metric %s: %d duplicate series are left out", family.name, len(lines) - len(kept))
    return kept


# Writes an exposition for node_exporter's textfile collector atomically.
#
# The name of the temporary file does not end in `.prom`, because the collector reads every `*.prom` in the
# folder. The mode is 0644 under any umask, because node_exporter runs as another user. One process writes a
# file at a time, also across containers that mount the same folder: two would replace each other's numbers in
# turn.


class TextfileWriter:
    """From `claim` to `release` no other process can claim the file."""

    def __init__(self, target: Path) -> None:
        if not target.parent.is_dir():
            raise UsageError(f"--output: folder {target.parent} does not exist; create it first")
        self.target = target
        self._lock_path = target.parent / f".{target.name}.lock"
        self._lock: int | None = None

    def claim(self) -> None:
        """A folder that cannot hold the lock cannot hold the file either, which `write` reports."""
        with suppress(OSError):
            self._lock = self._open_lock()

    def _open_lock(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last writer may have removed the file between these two lines.
                if self._lock_path.exists() and os.path.samestat(os.fstat(lock), self._lock_path.lstat()):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise UsageError(
                    f"--output {self.target}: another gpuscope writes this file; stop it or choose another file"
                ) from None
            os.close(lock)

    def release(self) -> None:
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def write(self, exposition: bytes) -> None:
        """Replaces the file atomically; after an error the old file stays."""
        write_atomically(self.target, exposition, mode=WORLD_READABLE)

    def remove(self) -> None:
        """Removes the file on a clean stop, so that old numbers are not scraped for ever."""
        self.target.unlink(missing_ok=True)
