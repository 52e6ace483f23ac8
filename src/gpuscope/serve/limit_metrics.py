"""Metrics for the limits in force and how often each was reached.

Separate from `own_metrics`, because the agent exports them too and must not import the store. The default of
`max_series` is computed at start, so the caller passes it; without it, that limit has no sample.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.base.limits import LIMITS_REACHED, Limits, limit_names
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.readings import Snapshot


def limit_families(limits: Limits, *groups: str, max_series: int | None = None) -> Iterator[MetricFamily]:
    """The limits of these groups, or of all groups; `max_series` is the store's effective value."""
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
        "How often this limit was reached.",
        [Sample(LabelSet((("limit", name),)), reached[name]) for name in names],
    )


class HttpLimitBuilder:
    """A `Builder` for the limits of HTTP listeners, used by the agent."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        return list(limit_families(self._limits, "http"))
