"""Scraping: discovery, relabelling, fetching, and ingestion of samples into the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Sink(Protocol):
    """A second destination for samples, such as remote-write queues. Here, because an agent loads it, and must
    not load numpy with the targets."""

    def encode_labels(self, labels: Iterable[tuple[str, str]]) -> bytes:
        """Encodes labels in the sink's format; called once per series."""
        ...

    def take(self, samples: Iterable[tuple[bytes, int, float]]) -> None:
        """Takes (encoded labels, milliseconds, value); must not block."""
        ...
