"""Rule groups as a file defines them, after all checks. Two equal specifications evaluate alike.

`expression` is the canonical text of the parsed expression: Prometheus evaluates, shows and links that text,
not the one in the file. Durations are nanoseconds, as evaluation times are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuscope.model.series import Labels

SECOND_NS = 1_000_000_000


def to_nanoseconds(seconds: float) -> int:
    """A clock's time; a float has microseconds at best."""
    return round(seconds * 1e6) * 1000


@dataclass(frozen=True, slots=True)
class RuleSpec:
    name: str
    """The alert's name, or the metric that a recording rule writes."""
    is_alert: bool
    expression: str
    labels: Labels = ()
    """Those of the group, overridden by those of the rule; an empty value removes the label."""
    annotations: Labels = ()
    for_ns: int = 0
    keep_firing_for_ns: int = 0
    line: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[str, Labels]:
        """Identifies the rule in its group over a reload or restart, except for duplicates."""
        return self.name, self.labels


@dataclass(frozen=True, slots=True)
class GroupSpec:
    name: str
    file: str
    """The path as configured and found: evaluation times depend on it."""
    interval_ns: int
    rules: tuple[RuleSpec, ...] = ()
    query_offset_ns: int | None = None
    limit: int = 0

    @property
    def key(self) -> str:
        """The value of the label `rule_group`."""
        return f"{self.file};{self.name}"
