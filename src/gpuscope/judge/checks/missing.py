"""What is missing from the current samples: nodes and targets that are gone, GPUs that are not read.

The server finds them in the scraper's state and in the history; the judgement gets them as input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.judge.checks.facts import Sample


@dataclass(frozen=True, slots=True)
class Gone:
    """Since when a node or target sends nothing, and the scrape error where there is one."""

    since: float
    why: str = ""
    answered: bool = True
    """False for a target that never answered; `since` is then the first try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneTarget:
    job: str
    instance: str
    url: str
    gone: Gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    samples: Sequence[Sample] = ()
    """The last known identity of the missing nodes and GPUs."""
    nodes: Mapping[str, Gone] = field(default_factory=dict)
    """By instance."""
    targets: Sequence[GoneTarget] = ()
    unread: Mapping[str, float] = field(default_factory=dict)
    """By instance: when its GPUs were last read."""


NOTHING_MISSING: Final = Missing()
