"""Recording rules that keep a year of usage small: hourly by owner and GPU, daily by owner.

`growth1h` is how much a counter grew in the hour before the evaluation, in whole minutes: exact, with resets
and counters that began inside it; `increase()` would extrapolate. `last1h` is its last value, so that a counter
that was silent for up to a day goes on from there. `evaluated` says which hours there are. All counters are in
one group: their hours are the same, so their sums agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HOURLY_EVALUATED: Final = "gpuscope:rollup_evaluated:hourly"
DAILY_EVALUATED: Final = "gpuscope:rollup_evaluated:daily"
"""The value is the time of the evaluation."""
HOURLY_INFOS: Final = {
    "gpuscope_gpu_info": "gpuscope:gpu_info:hourly",
    "gpuscope_mig_info": "gpuscope:mig_info:hourly",
    "gpuscope_pod_labels": "gpuscope:pod_labels:hourly",
}
"""Series whose labels name a GPU's model, an instance's profile and a pod's labels, by raw name."""
LONG_KEPT: Final = (":growth1h", ":growth1d", ":hourly", ":daily")
OWNER_KINDS: Final = ("user", "account", "job", "pod")
"""A rule for each: all owners of a large fleet at once are more samples than a query may hold."""
QUERY_OFFSET: Final = "1m"
"""Samples that are pushed or scraped late still count."""
HOURLY_GROUP: Final = "gpuscope-rollup-hourly"
DAILY_GROUP: Final = "gpuscope-rollup-daily"
FILE_NAME: Final = "gpuscope-rollups.yml"
HEADER: Final = """\
# Roll-ups for `gpuscope report`: growth of the usage counters by hour, and by day for each owner.
# Written by `make docs` from src/gpuscope/judge/rules/shipped; docs/reports.md explains them.
groups:"""


@dataclass(frozen=True, slots=True)
class RolledUpCounter:
    name: str
    """Without `gpuscope_` and `_total`."""
    is_by_owner: bool
    skips_zero: bool = False
    """A growth of 0 is not recorded: it is usual, and an absent one means the same."""

    @property
    def raw(self) -> str:
        return f"gpuscope_{self.name}_total"

    @property
    def growth_by_hour(self) -> str:
        return f"gpuscope:{self.name}:growth1h"

    @property
    def growth_by_day(self) -> str:
        return f"gpuscope:{self.name}:growth1d"

    @property
    def last_value(self) -> str:
        return f"gpuscope:{self.name}:last1h"


COUNTERS: Final = (
    RolledUpCounter("owner_gpu_seconds", is_by_owner=True),
    RolledUpCounter("owner_busy_seconds", is_by_owner=True),
    RolledUpCounter("owner_unknown_seconds", is_by_owner=True, skips_zero=True),
    RolledUpCounter("owner_idle_gpu_seconds", is_by_owner=True, skips_zero=True),
    RolledUpCounter("owner_energy_joules", is_by_owner=True),
    RolledUpCounter("gpu_observed_seconds", is_by_owner=False),
    RolledUpCounter("gpu_held_seconds", is_by_owner=False),
    RolledUpCounter("gpu_free_seconds", is_by_owner=False),
    RolledUpCounter("gpu_stranded_seconds", is_by_owner=False),
    RolledUpCounter("gpu_held_busy_seconds", is_by_owner=False),
    RolledUpCounter("gpu_held_unknown_seconds", is_by_owner=False, skips_zero=True),
    RolledUpCounter("gpu_held_idle_seconds", is_by_owner=False, skips_zero=True),
    RolledUpCounter("gpu_held_energy_joules", is_by_owner=False),
)


def is_long_kept(metric: str) -> bool:
    """Whether the embedded store keeps these series for --rollup-retention."""
    return metric.startswith("gpuscope:") and metric.endswith(LONG_KEPT)


def _growth(counter: RolledUpCounter, matchers: str) -> list[str]:
    """A sum over the minutes of the hour: the value minus the one before; the value itself at the beginning of
    a counter and after a reset."""
    raw, last = f"{counter.raw}{matchers}", f"{counter.last_value}{matchers}"
    now = f"last_over_time({raw}[1m])"
    return [
        "sum_over_time((",
        f"  {now}",
        f"    - (last_over_time({raw}[1h] offset 1m)",
        f"      or last_over_time({last}[1d] offset 1m)) >= 0",
        f"  or {now} + 0",
        ")[1h:1m])" + (" > 0" if counter.skips_zero else ""),
    ]


def _rule(record: str, expression: list[str], kind: str = "") -> Iterator[str]:
    yield f"      - record: {record}"
    if len(expression) == 1:
        yield f"        expr: {expression[0]}"
    else:
        yield "        expr: |"
        yield from (f"          {line}" for line in expression)
    if kind:  # the series have it already; promtool refuses two rules with one name and the same labels
        yield "        labels:"
        yield f"          kind: {kind}"


def _group(name: str, interval: str, rules: Iterator[str]) -> str:
    head = [f"  - name: {name}", f"    interval: {interval}", f"    query_offset: {QUERY_OFFSET}", "    rules:"]
    return "\n".join([*head, *rules, ""])


def _hourly_rules() -> Iterator[str]:
    for counter in COUNTERS:
        # The last value is recorded after the growth, which must see that of an earlier evaluation.
        if not counter.is_by_owner:
            yield from _rule(counter.growth_by_hour, _growth(counter, ""))
        for kind in OWNER_KINDS if counter.is_by_owner else ():
            yield from _rule(counter.growth_by_hour, _growth(counter, f'{{kind="{kind}"}}'), kind)
        yield from _rule(counter.last_value, [f"last_over_time({counter.raw}[1h])"])
    for raw, record in HOURLY_INFOS.items():
        yield from _rule(record, [f"last_over_time({raw}[1h])"])
    yield from _rule(HOURLY_EVALUATED, ["vector(time())"])


def _daily_rules() -> Iterator[str]:
    for counter in COUNTERS:
        if counter.is_by_owner:
            by_owner = f"sum by (kind, namespace, name) (sum_over_time({counter.growth_by_hour}[1d]))"
            yield from _rule(counter.growth_by_day, [by_owner])
    yield from _rule(
        DAILY_EVALUATED, [f"vector(time()) and on () count_over_time({HOURLY_EVALUATED}[1d]) == 24"]
    )


def rollup_groups() -> dict[str, str]:
    """The YAML of each group by its name."""
    return {
        HOURLY_GROUP: _group(HOURLY_GROUP, "1h", _hourly_rules()),
        DAILY_GROUP: _group(DAILY_GROUP, "1d", _daily_rules()),
    }


def rollup_file() -> str:
    return "\n".join([HEADER, *rollup_groups().values()]).rstrip() + "\n"
