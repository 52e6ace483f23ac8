"""Times as text, the way Prometheus' API and most configuration files write them: 2026-11-16T10:48:00Z."""

from __future__ import annotations

from datetime import UTC, datetime


def to_rfc3339(seconds: float, timespec: str = "auto") -> str:
    """In UTC; with microseconds where there are some, or as `timespec` says (`seconds`, `milliseconds`)."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch. A time without a zone is UTC. ValueError if it is not a time."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
