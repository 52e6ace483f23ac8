"""The health of a scrape target, as reported by its loop or by another engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHealth:
    """Times are in seconds since the epoch; None means unknown, or not since this process started."""

    labels: Mapping[str, str]
    url: str = ""
    up: bool = False
    scraped: bool = True  # False: not scraped yet
    error: str = ""
    first_try: float | None = None
    last_success: float | None = None

    @property
    def instance(self) -> str:
        return self.labels.get("instance", "")

    @property
    def job(self) -> str:
        return self.labels.get("job", "")
