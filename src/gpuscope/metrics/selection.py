"""Which metrics a builder makes: all of them, or only those somebody will look at.

The live view needs three dozen of some two hundred metrics, each second, of every GPU: what it does not need is
not built, rather than built and thrown away. The names are those of the catalogue; nothing is named twice.
"""

from __future__ import annotations

from collections.abc import Iterable


class Selection:
    """A set of metric names; without any names given, every name is in it."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)

    def __contains__(self, name: str) -> bool:
        return self._names is None or name in self._names

    def any_under(self, prefix: str) -> bool:
        """Whether a whole group of metrics is worth beginning with."""
        return self._names is None or any(name.startswith(prefix) for name in self._names)


EVERY_METRIC = Selection()
