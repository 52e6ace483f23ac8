"""The limits in force and how often each was reached, as metrics.

Apart from `own_metrics`, because the agent shows them too and must not load the store for it. A limit whose
default is found at the start (`max_series`) is told by who found it; not told, it has no number.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.limits import LIMITS_REACHED, Limits, limit_names
from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample
from gpuscope.readings import Snapshot


def limit_families(limits: Limits, *groups: str, max_series: int | None = None) -> Iterator[MetricFamily]:
    """The limits of these groups, or all; `max_series` as the store has it, set or by default."""
    names = limit_names(*groups)
    values = {name: getattr(limits, name) for name in names}
    if max_series is not None and "max_series" in values:
        values["max_series"] = max_series
    reached = LIMITS_REACHED.counts()
    yield MetricFamily(
        "gpuscope_limit",
        "gauge",
        "The limits in force, in bytes, seconds or items; docs/security.md explains each.",
        [Sample(LabelSet((("limit", name),)), value) for name, value in values.items() if value is not None],
    )
    yield MetricFamily(
        "gpuscope_limit_reached_total",
        "counter",
        "Times something was refused because it reached this limit.",
        [Sample(LabelSet((("limit", name),)), reached[name]) for name in names],
    )


class HttpLimitBuilder:
    """As a `Builder`: the limits of HTTP listeners, for the agent's own exposition."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        return list(limit_families(self._limits, "http"))
