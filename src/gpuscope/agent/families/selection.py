"""Which metrics a builder creates: all, or only the selected names.

The live view needs about 40 of 200 metrics each second for every GPU; the others are not built. The names are
those of the metric tables.
"""

from __future__ import annotations

from collections.abc import Iterable


class MetricSelection:
    """A set of metric names; without names it contains every name."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)

    def __contains__(self, name: str) -> bool:
        return self._names is None or name in self._names

    def any_under(self, prefix: str) -> bool:
        """Whether any selected name starts with this prefix."""
        return self._names is None or any(name.startswith(prefix) for name in self._names)


EVERY_METRIC = MetricSelection()
