"""How a scrape target does, as its loop or another engine knows it: a value without connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """Times are in seconds since the epoch; None is not since this process started, or not known."""

    labels: Mapping[str, str]
    url: str = ""
    up: bool = False
    scraped: bool = True  # False: its first scrape is still to come
    error: str = ""
    first_try: float | None = None
    last_success: float | None = None

    @property
    def instance(self) -> str:
        return self.labels.get("instance", "")

    @property
    def job(self) -> str:
        return self.labels.get("job", "")
