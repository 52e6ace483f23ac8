"""What an error, a throttle reason, a state of a GPU, an alert or a metric means, and what to do.

`gpuscope explain` prints it, and assistants ask for it. `KINDS` has the kinds: the names of each, and how one
is explained. A name that is not known raises UsageError with the nearest one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.model.vendor import ErrorCatalogue, catalogues, throttle_reasons

LOOKBACK: Final = "30d"
STATE_LOOKBACK: Final = "7d"


@dataclass(frozen=True, slots=True)
class Explanation:
    """`facts` are pairs of heading and text, in the order shown; `seen` is the PromQL of its occurrences."""

    title: str
    facts: Sequence[tuple[str, str]]
    seen: str = ""
    seen_text: str = ""
    """How a value of `seen` reads: `{}` is the number."""
    not_seen: str = f"not in the last {LOOKBACK}"


def _with_model(expression: str) -> str:
    """The expression sorted, with the model of each GPU where it is known."""
    models = f"max by (instance, uuid, model) (last_over_time(gpuscope_gpu_info[{LOOKBACK}]))"
    of_model = f"({expression}) * on (instance, uuid) group_left (model) {models}"
    return f"sort_desc({of_model} or on (instance, uuid) ({expression}))"


def _error_codes(errors: ErrorCatalogue) -> list[str]:
    return sorted(errors.errors, key=lambda code: (len(code), code))


def _explain_error(errors: ErrorCatalogue, code: str) -> Explanation:
    if not errors.is_code(code):
        raise UsageError(
            f"{code!r} is not an {errors.word}: {errors.code_form}, "
            f"for example `gpuscope explain {errors.key} {errors.example}`"
        )
    error = errors.explain(code)
    facts = [
        ("meaning", error.meaning),
        ("class", error.error_class),
        ("usual cause", error.usual_cause),
        ("next step", error.next_step),
        (
            "healthy GPU",
            "yes: one program is hit"
            if error.is_application
            else "it can go on; reset it at the next maintenance"
            if error.is_contained
            else "no, it is suspect"
            if error.blames_gpu
            else "yes",
        ),
    ]
    if error.related:
        facts.append(("look at", ", ".join(error.related)))
    counter = f'{errors.total_metric}{{{errors.key}="{error.code}"}}'
    seen = _with_model(f"sum by (instance, gpu, uuid) (last_over_time({counter}[{LOOKBACK}])) > 0")
    return Explanation(f"{errors.word} {error.code} {error.name}".rstrip(), facts, seen, "{} times")


def _throttle_names() -> list[str]:
    return list(throttle_reasons())


def _explain_throttle(name: str) -> Explanation:
    row = throttle_reasons()[_known(name, throttle_reasons(), "throttle", "throttle reason")]
    facts = [
        ("meaning", row.meaning),
        ("problem", "yes, it costs speed" if row.hinders else "no"),
        ("next step", row.next_step),
    ]
    seen = _seconds(f'gpuscope_gpu_throttled_seconds_total{{reason="{row.reason}"}}')
    return Explanation(f"throttle reason {row.reason}", facts, seen, "seconds")


def _seconds(counters: str) -> str:
    """Seconds per GPU, from counters that the agents keep."""
    return _with_model(f"sum by (instance, gpu, uuid) (last_over_time({counters}[{LOOKBACK}])) > 0")


def _state_seen(state: str) -> str:
    """Seconds per GPU in a state: from counters if there are any, else sampled every five minutes."""
    from gpuscope.judge.checks.checks import CHECKS
    from gpuscope.judge.checks.gpu_checks import HINDERING
    from gpuscope.judge.checks.states import STATE_OF_KIND

    counters = {
        "throttled": f'gpuscope_gpu_throttled_seconds_total{{reason=~"{"|".join(HINDERING)}"}}',
        "held": "gpuscope_gpu_held_idle_seconds_total",
        "busy": "gpuscope_gpu_busy_seconds_total",
        "idle": "gpuscope_gpu_free_seconds_total",
    }
    if state in counters:
        return _seconds(counters[state])
    if state == "gone":
        return f"sort_desc(sum by (instance) (300 * count_over_time((up == 0)[{STATE_LOOKBACK}:5m])))"
    if state == "allocated":
        unused = "max by (instance, gpu, uuid) (gpuscope_allocation_used) == 0"
        return _with_model(f"300 * count_over_time(({unused})[{STATE_LOOKBACK}:5m])")
    if state == "stale":
        old = CHECKS["node_stale"].promql
        return f"sort_desc(sum by (instance) (300 * count_over_time(({old})[{STATE_LOOKBACK}:5m])))"
    kinds = [kind for kind, named in STATE_OF_KIND.items() if named == state]
    so = " or ".join(f"group by (instance, gpu, uuid) ({CHECKS[kind].promql})" for kind in kinds)
    return _with_model(f"300 * count_over_time(({so})[{STATE_LOOKBACK}:5m])")


def _state_names() -> list[str]:
    from gpuscope.judge.checks.states import WORST_FIRST

    return [str(state) for state in WORST_FIRST]


def _explain_state(name: str) -> Explanation:
    from gpuscope.agent.owners.gpu_work import MEANING_OF_WORK
    from gpuscope.judge.checks.states import STATES, WORST_FIRST, State

    row = STATES[State(_known(name, _state_names(), "state", "state"))]
    worse = WORST_FIRST[: WORST_FIRST.index(row.state)]
    facts = [
        ("meaning", row.meaning),
        *((("work is", MEANING_OF_WORK),) if row.state in (State.BUSY, State.HELD) else ()),
        ("letter", row.letter),
        ("needs action", "yes" if row.wants_action else "no"),
        ("shown unless", f"it is also {', '.join(map(str, worse))}" if worse else "always shown"),
    ]
    return Explanation(f"state {row.state}", facts, _state_seen(str(row.state)), "seconds", "no GPU was in it")


def _alert_names() -> list[str]:
    from gpuscope.judge.rules.shipped.shipped_rule import EXPLAINED

    return list(EXPLAINED)


def _explain_alert(name: str) -> Explanation:
    from gpuscope.judge.rules.shipped.shipped_rule import EXPLAINED, alert_facts

    check = EXPLAINED[_known(name, EXPLAINED, "alert", "shipped alert")]
    return Explanation(f"alert {check.alert}", alert_facts(check))


def _metric_names() -> list[str]:
    from gpuscope.agent.families.native.table import NATIVE_METRICS

    return [metric.name for metric in NATIVE_METRICS]


def _explain_metric(name: str) -> Explanation:
    from gpuscope.agent.families.native.table import NATIVE_METRICS
    from gpuscope.model.vendor import vendor_fields

    metrics = {metric.name: metric for metric in NATIVE_METRICS}
    metric = metrics[_known(name, metrics, "metric", "metric of the native family")]
    facts = [("meaning", metric.help), ("type", metric.type)]
    facts += [("unit", metric.unit_name)] if metric.unit_name else []
    facts += [("labels", ", ".join(dict.fromkeys(("gpu", "uuid", *metric.labels))))] if metric.reading else []
    others = {
        other
        for field in vendor_fields()
        if field.names.get("native") == metric.name
        for family, other in field.names.items()
        if family != "native"
    }
    facts += [("other exporters", ", ".join(sorted(others)))] if others else []
    models = "max by (instance, uuid, model) (gpuscope_gpu_info)"
    of_gpus = f'group by (instance, uuid) ({metric.name}{{uuid!=""}})'
    seen = (
        f"count by (model) ({of_gpus} * on (instance, uuid) group_left (model) {models}) "
        f'or count by (instance) (group by (instance) ({metric.name}{{uuid=""}}))'
    )
    return Explanation(f"metric {metric.name}", facts, seen, "{} have it now", "no series has this name now")


def _known(name: str, names: Iterable[str], kind: str, what: str) -> str:
    every = list(names)
    if name in every:
        return name
    near = difflib.get_close_matches(name, every, 1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    raise UsageError(f"{name[:60]!r} is not a {what}{guess}; `gpuscope explain {kind}` lists them")


@dataclass(frozen=True, slots=True)
class ExplainedKind:
    names: Callable[[], list[str]]
    explain: Callable[[str], Explanation]


KINDS: Final[Mapping[str, ExplainedKind]] = {
    **{
        errors.key: ExplainedKind(partial(_error_codes, errors), partial(_explain_error, errors))
        for errors in catalogues()
    },
    "throttle": ExplainedKind(_throttle_names, _explain_throttle),
    "state": ExplainedKind(_state_names, _explain_state),
    "alert": ExplainedKind(_alert_names, _explain_alert),
    "metric": ExplainedKind(_metric_names, _explain_metric),
}


def find_kind(name: str) -> str:
    """The kind of a name that is given alone: `79`, `held`, `HeldIdle`."""
    kinds = [kind for kind, explained in KINDS.items() if name in explained.names()]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise UsageError(
            f"{name!r} is a name of several: {', '.join(f'explain {kind} {name}' for kind in kinds)}"
        )
    raise UsageError(f"{name[:60]!r} is neither a kind ({', '.join(KINDS)}) nor the name of one of them")
