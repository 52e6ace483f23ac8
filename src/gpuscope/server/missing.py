"""Data about what is missing from the current samples: gone nodes, gone targets, GPUs that are not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Sample = tuple[str, Mapping[str, str], float]
"""Metric name, labels, value."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The time at which a node or target went away, and the scrape's error, if any."""

    since: float
    why: str = ""
    answered: bool = True  # False: no scrape ever succeeded, and `since` is the first attempt

    def to_json(self) -> dict[str, Any]:
        return {"since": self.since, "why": self.why, "answered": self.answered}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneTarget:
    job: str
    instance: str
    url: str
    gone: Gone

    def to_json(self) -> dict[str, Any]:
        return {"job": self.job, "instance": self.instance, "url": self.url, **self.gone.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    samples: Sequence[Sample] = ()  # the last known identity of the nodes and their GPUs
    nodes: Mapping[str, Gone] = field(default_factory=dict)  # by instance
    targets: Sequence[GoneTarget] = ()
    unread: Mapping[str, float] = field(default_factory=dict)  # by instance: the last time its GPUs were read


NOTHING_MISSING: Final = Missing()
