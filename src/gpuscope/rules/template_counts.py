"""How many templates were expanded and how many failed, for `prometheus_template_text_expansion*_total`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TemplateCounts:
    """Counted by the one evaluation thread."""

    expansions: int = 0
    failures: int = 0


TEMPLATE_COUNTS = TemplateCounts()
"""One per process, like its /metrics."""
