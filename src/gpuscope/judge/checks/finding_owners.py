"""Whose a GPU is: the owner of the process on it with the most memory."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.judge.checks.condition import owner_of
from gpuscope.judge.checks.facts import ProcessFacts
from gpuscope.judge.checks.finding import FindingOwner


def main_owner(processes: Sequence[ProcessFacts]) -> FindingOwner | None:
    """None without processes."""
    if not processes:
        return None
    largest = max(processes, key=lambda one: one.plain.get("gpuscope_process_memory_bytes", 0.0))
    return owner_of(largest.labels)
