"""The shipped rule files as text: alerts, also for other exporters, roll-ups, and inhibition rules."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuscope.base.time_text import duration_text
from gpuscope.judge.checks import thresholds
from gpuscope.judge.checks.check import SLOW_SECONDS, Check, Subject
from gpuscope.judge.checks.checks import CHECKS, SERVICE_CHECKS
from gpuscope.judge.checks.gpu_checks import GPU_CHECKS
from gpuscope.judge.checks.link_checks import LINK_CHECKS
from gpuscope.judge.checks.node_checks import NODE_CHECKS
from gpuscope.judge.checks.slurm_checks import SLURM_CHECKS
from gpuscope.judge.checks.use_checks import USE_CHECKS
from gpuscope.judge.checks.wait_checks import WAIT_CHECKS
from gpuscope.judge.rules.shipped.shipped_rule import (
    NODE_PLACE,
    WATCHDOG,
    ShippedGroup,
    ShippedRule,
    rule_of_check,
)
from gpuscope.model.vendor import ExporterRules, advices

# The same alerts over the metrics of other exporters, for people who keep those: the vendors have the rows.


def exporter_groups() -> tuple[ShippedGroup, ...]:
    return tuple(
        ShippedGroup(rules.group, rules.title, _rules(rules), is_default=False)
        for advice in advices().values()
        for rules in advice.exporter_rules
    )


def _rules(exporter: ExporterRules) -> tuple[ShippedRule, ...]:
    limits = {name: f"{value:g}" for name, value in vars(thresholds).items() if isinstance(value, int | float)}
    limits["XID_ALERT_DURATION"] = duration_text(round(thresholds.XID_ALERT_SECONDS * 1000))
    rules = []
    for kind, expression, detail in exporter.rows:
        is_node = CHECKS[kind].subject is Subject.NODE
        rules.append(
            ShippedRule(
                check=CHECKS[kind],
                expression=expression % limits,
                place=NODE_PLACE if is_node else exporter.place,
                detail=detail,
                lookups={} if is_node else exporter.lookups,
                gpu_argument=exporter.gpu_argument,
            )
        )
    return tuple(rules)


MAX_COLUMNS: Final = 100
_SPACE: Final = "\0"
"""Stands for a space of a string while lines are wrapped."""
SLOW_SUFFIX: Final = "-slow"
SLOW_INTERVAL: Final = duration_text(round(SLOW_SECONDS * 1000))
OF_GPUS: Final = (*GPU_CHECKS, *LINK_CHECKS)
OF_USE: Final = (*WAIT_CHECKS, *USE_CHECKS)

HEADER: Final = """\
# {title}
# Written by `make docs` from src/gpuscope/judge/checks; docs/rules.md explains each rule and how to change it.
"""
ANCHORS_EXPLAINED: Final = """\
# `gpu: &gpu TEXT` names an annotation's text where it first occurs; `gpu: *gpu` repeats it. Keep the first.
"""


def _group(name: str, title: str, checks: tuple[Check, ...], is_default: bool = True) -> ShippedGroup:
    rules = tuple(rule_of_check(check) for check in checks)
    return ShippedGroup(name, title, rules, is_default)


def shipped_groups() -> tuple[ShippedGroup, ...]:
    """Each is a file of its name."""
    return (
        _group("gpuscope-node", "Nodes: no answer, old numbers, missing GPUs, memory, disks.", NODE_CHECKS),
        _group("gpuscope-gpu", "GPUs: lost, XIDs, memory errors, heat, power, PCIe, links.", OF_GPUS),
        _group("gpuscope-use", "Use: GPUs that wait or are held idle, memory without an owner.", OF_USE),
        _group("gpuscope-slurm", "Slurm; without Slurm none of these fires.", SLURM_CHECKS),
        _group("gpuscope-service", "The monitoring itself.", (*SERVICE_CHECKS, WATCHDOG)),
        *exporter_groups(),
    )


def yaml_text(text: str, indent: int = 12) -> str:
    """A single-quoted YAML string: nothing in it but the quote itself has a meaning. YAML makes a space of a
    line break and of the indentation after it."""
    return "'" + text.replace("'", "''").replace("\n", "\n" + " " * indent) + "'"


def _expression_lines(expression: str) -> Iterator[str]:
    if len(expression) <= MAX_COLUMNS - 14:
        yield (
            f"        expr: {expression}" if _is_plain(expression) else f"        expr: {yaml_text(expression)}"
        )
        return
    yield "        expr: |"
    # A string in PromQL has no line break: its spaces are no place to wrap.
    unbroken = re.sub(r'"(?:[^"\\]|\\.)*"', lambda string: string[0].replace(" ", _SPACE), expression)
    for part in _parts(unbroken):
        wrapped = textwrap.wrap(
            part, MAX_COLUMNS - 10, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        yield from (f"          {line.replace(_SPACE, ' ')}" for line in wrapped)


def _parts(expression: str) -> Iterator[str]:
    """Cut before each `and`, `or` and `unless` outside of parentheses."""
    depth = begin = 0
    for token in re.finditer(r"[()]|(?<= )(?:and|or|unless) ", expression):
        if token[0] in "()":
            depth += 1 if token[0] == "(" else -1
        elif depth == 0:
            yield expression[begin : token.start()].rstrip()
            begin = token.start()
    yield expression[begin:]


def _is_plain(expression: str) -> bool:
    """Whether YAML reads it as it stands."""
    return ": " not in expression and " #" not in expression and expression[0].isalpha()


def _rule_lines(rule: ShippedRule, anchors: dict[str, str], page_url: str) -> Iterator[str]:
    yield f"      - alert: {rule.alert}"
    yield from _expression_lines(rule.expression)
    if rule.check.for_seconds:
        yield f"        for: {duration_text(round(rule.check.for_seconds * 1000))}"
    yield "        labels:"
    yield f"          severity: {'none' if rule.check is WATCHDOG else rule.check.severity}"
    yield "        annotations:"
    for name, text in rule.annotations(page_url).items():
        yield f"          {name}: {_text_or_alias(name, text, rule, anchors)}"


def _text_or_alias(name: str, text: str, rule: ShippedRule, anchors: dict[str, str]) -> str:
    """Long lookups are written once in a file, with a YAML anchor."""
    if name not in rule.lookups:
        return yaml_text(text)
    if text in anchors:
        return f"*{anchors[text]}"
    known = set(anchors.values())
    anchors[text] = name if name not in known else f"{name}_{rule.alert}"
    return f"&{anchors[text]} {yaml_text(text)}"


def group_text(group: ShippedGroup, page_url: str = "") -> str:
    """The file of a group. `page_url` is gpuscope's own address, for `runbook_url`; it may be a template."""
    header = HEADER.format(title=group.title)
    if any(rule.lookups for rule in group.rules):
        header += ANCHORS_EXPLAINED
    lines = [header + "groups:"]
    anchors: dict[str, str] = {}
    for name, interval, rules in _by_interval(group):
        lines += [f"  - name: {name}", *interval, "    rules:"]
        for rule in rules:
            lines += [*_rule_lines(rule, anchors, page_url), ""]
    return "\n".join(lines).rstrip() + "\n"


def _by_interval(group: ShippedGroup) -> Iterator[tuple[str, list[str], list[ShippedRule]]]:
    """Rules that are evaluated once a minute have a group of their own."""
    slow = [rule for rule in group.rules if rule.is_slow]
    if usual := [rule for rule in group.rules if rule not in slow]:
        yield group.name, [], usual
    if slow:
        yield f"{group.name}{SLOW_SUFFIX}", [f"    interval: {SLOW_INTERVAL}"], slow


def rule_files(page_url: str = "") -> dict[str, str]:
    return {f"{group.name}.yml": group_text(group, page_url) for group in shipped_groups()}


def _equal_labels(source: Check, target: Check) -> tuple[str, ...]:
    if target.subject is Subject.SLURM_NODE:  # its instance is the agent that reads the cluster
        return ("instance", "node") if source.subject is Subject.SLURM_NODE else ("instance",)
    if Subject.SERVICE in (source.subject, target.subject):
        return ("instance",) if source.subject is Subject.NODE else ()
    of_one_gpu = (Subject.GPU, Subject.PROCESS, Subject.OWNER)
    if source.subject in of_one_gpu and target.subject in of_one_gpu:
        # dcgm-exporter spells it UUID; a label that neither alert has is equal.
        return ("instance", "uuid", "UUID")
    return ("instance",)


def inhibit_rules() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Source alert, target alerts, and the labels that must be equal."""
    targets: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for target in CHECKS.values():
        for kind in target.explained_by:
            source = CHECKS[kind]
            if Subject.SLURM_NODE in (source.subject, target.subject) and source.subject is Subject.NODE:
                continue  # Slurm's name of a node is no label of the agent's target: nothing is equal
            targets[source.alert, _equal_labels(source, target)].append(target.alert)
    for (source_alert, equal), alerts in targets.items():
        yield source_alert, tuple(sorted(alerts)), equal


# Recording rules that keep a year of usage small: hourly by owner and GPU, daily by owner.
#
# `growth1h` is how much a counter grew in the hour before the evaluation, in whole minutes: exact, with
# resets and counters that began inside it; `increase()` would extrapolate. `last1h` is its last value, so
# that a counter that was silent for up to a day goes on from there. `evaluated` says which hours there are.
# All counters are in one group: their hours are the same, so their sums agree.

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
ROLLUP_HEADER: Final = """\
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


def _rollup_group(name: str, interval: str, rules: Iterator[str]) -> str:
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
        HOURLY_GROUP: _rollup_group(HOURLY_GROUP, "1h", _hourly_rules()),
        DAILY_GROUP: _rollup_group(DAILY_GROUP, "1d", _daily_rules()),
    }


def rollup_file() -> str:
    return "\n".join([ROLLUP_HEADER, *rollup_groups().values()]).rstrip() + "\n"
