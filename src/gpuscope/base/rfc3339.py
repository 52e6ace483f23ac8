"""Converts times to and from RFC 3339 text, the format of Prometheus' API: 2026-11-16T10:48:00Z."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_HOUR_24: Final = re.compile(r"[^T ]*[T ]24")


def to_rfc3339(seconds: float, timespec: str = "auto") -> str:
    """UTC, with microseconds if they are not 0. `timespec` (`seconds`, `milliseconds`) fixes the precision.

    Raises ValueError for a time outside the years 1 to 9999.
    """
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError):
        raise ValueError(f"{seconds} is not a time") from None
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch. A time without a zone is UTC. Raises ValueError."""
    if _HOUR_24.match(text):  # Python takes it from 3.14 on, Prometheus does not
        raise ValueError(f"{text!r} has no hour 24")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
