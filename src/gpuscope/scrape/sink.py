"""Somewhere else that takes what is stored or collected: a remote-write queue, or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Sink(Protocol):
    def encode_labels(self, labels: Iterable[tuple[str, str]]) -> bytes:
        """The labels as the sink wants them; asked once for each series."""
        ...

    def take(self, samples: Iterable[tuple[bytes, int, float]]) -> None:
        """(encoded labels, milliseconds, value); must not wait."""
        ...
