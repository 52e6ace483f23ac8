"""Expressions over the hostile data: every function and operator by hand, and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

VECTORS = [
    "watts",
    "gauge",
    "busy_seconds_total",
    "events_total",
    'gauge{trouble=~"nan|infinite|stale"}',
    "steps",
    "tiny",
    "huge",
    "gauge offset 7m",
    "gauge offset -3m",
    "watts @ start()",
    "gauge @ end() offset 2m",
]
RANGES = [
    "watts[5m]",
    "gauge[5m]",
    "gauge[37s]",
    "gauge[20m]",
    "watts[30m]",
    "tiny[1h]",
    "cancels[40m]",
    "events_total[5m]",
    "events_total[61s]",
    "events_total[90s] offset 4m",
    "busy_seconds_total[1m]",
    "busy_seconds_total[10m] offset -5m",
    "gauge[10m] @ end()",
    "huge[5m]",
    "cancels[3m]",
    "tiny[1m]",
    "steps[15m]",
    "watts[10m:1m]",
    "gauge[7m:47s]",
    "gauge[5m:] offset 1m",
    "rate(events_total[2m])[10m:30s]",
    "sum by (node) (watts)[5m:1m] @ start()",
]
RANGE_FUNCTIONS = [
    "rate",
    "increase",
    "delta",
    "irate",
    "idelta",
    "deriv",
    "changes",
    "resets",
    "avg_over_time",
    "sum_over_time",
    "min_over_time",
    "max_over_time",
    "count_over_time",
    "last_over_time",
    "present_over_time",
    "absent_over_time",
    "stddev_over_time",
    "stdvar_over_time",
]
VALUE_FUNCTIONS = [
    *("abs", "ceil", "floor", "exp", "sqrt", "ln", "log2", "log10", "sgn", "round", "sort", "sort_desc"),
    *(
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "deg",
        "rad",
    ),
    *("absent", "timestamp"),
]
DATE_FUNCTIONS = [
    *("day_of_month", "day_of_week", "day_of_year", "days_in_month", "hour", "minute", "month", "year"),
]
AGGREGATIONS = ["sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"]
GROUPINGS = ["", "by (node)", "by (node, gpu)", "without (gpu)", "by (trouble)", "by (nothing)", "without ()"]
ARITHMETIC = ["+", "-", "*", "/", "%", "^", "atan2"]
STEADY_RANGE_FUNCTIONS = [f for f in RANGE_FUNCTIONS if f != "deriv" and not f.startswith("std")]
STEADY_AGGREGATIONS = [f for f in AGGREGATIONS if not f.startswith("std")]
STEADY_FUNCTIONS = ["abs", "ceil", "floor", "sqrt", "sgn", "round", "deg", "rad", "timestamp"]
STEADY_ARITHMETIC = ["+", "-", "*", "/"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]

BY_HAND = [
    # scalars, strings, literals
    "1",
    "-1.5e3",
    "0x1F + 1h",
    "1_000.5 + 0x_ff * 1_0e1_0",
    "watts_1_0 or watts{gpu!='1_0'} > 1_00",
    "NaN",
    "Inf - Inf",
    "2 ^ 3 ^ 2",
    "-2 ^ 2",
    "7 % -3",
    "1 / 0",
    "-1 / 0",
    "0 / 0",
    "1 atan2 -1",
    "1 > bool 2",
    "3 == bool 3",
    "time()",
    "pi()",
    "scalar(only)",
    "scalar(watts)",
    "scalar(missing)",
    "scalar(only) + time()",
    "vector(1)",
    "vector(time() % 7)",
    "-watts",
    "-(watts - 1)",
    "+watts",
    "--1",
    # dates
    "hour()",
    "day_of_week()",
    "days_in_month(vector(1709164800))",
    "year(vector(-1))",
    "minute(vector(1.999))",
    # absent
    "absent(missing)",
    'absent(missing{a="1", b!="2", c=~"x", d="y", d="z"})',
    "absent(sum(missing))",
    "absent(watts)",
    'absent_over_time(missing{a="1"}[5m])',
    "absent_over_time(gauge[30s])",
    'absent_over_time(gauge{trouble="late"}[5m])',
    'absent(gauge{trouble="early"})',
    # parameters that change with time
    "clamp(gauge, 100, 500)",
    "clamp(gauge, 500, 100)",
    "clamp_min(gauge, 300)",
    "clamp_max(gauge, 300)",
    "clamp(watts, scalar(only), 600)",
    "clamp_min(gauge, NaN)",
    "clamp_max(gauge, Inf)",
    "round(gauge, 0.1)",
    "round(watts, 7)",
    "round(watts, scalar(tiny))",
    "round(watts, 0)",
    "quantile_over_time(0.9, gauge[5m])",
    "quantile_over_time(0, gauge[5m])",
    "quantile_over_time(1, gauge[1m])",
    "quantile_over_time(-0.1, gauge[5m])",
    "quantile_over_time(1.1, gauge[5m])",
    "quantile_over_time(NaN, gauge[5m])",
    "quantile_over_time(scalar(tiny), watts[7m])",
    "quantile_over_time(0.31, gauge[10m:20s])",
    "predict_linear(gauge[10m], 3600)",
    "predict_linear(watts[5m] offset 3m, 60)",
    "predict_linear(watts[5m] @ end(), 60)",
    "predict_linear(watts[10m:1m], scalar(tiny) * 100)",
    "topk(3, watts)",
    "topk by (node) (1, watts)",
    "bottomk(2, gauge)",
    "bottomk by (node) (2, watts)",
    "topk(100, gauge)",
    "topk(0, watts)",
    "topk(-1, watts)",
    # Never NaN: since 3.14, as here, a k that is NaN at any step is an error; before, only where there were
    # samples to rank.
    "topk(scalar(sum(steps{node='a'}) or vector(2)), watts)",
    "topk(NaN, watts)",
    "quantile(0.7, watts)",
    "quantile by (node) (0.5, gauge)",
    "quantile(2, watts)",
    "quantile(-2, watts)",
    "quantile(NaN, watts)",
    "quantile without (number, trouble) (scalar(tiny), gauge)",
    'count_values("v", steps)',
    'count_values by (node) ("v", steps / 8)',
    'count_values without (gpu) ("gpu", round(watts, 100))',
    'count_values("v", gauge{trouble=~"zero|flat|nan"} - 42.5)',
    # histograms
    "histogram_quantile(0.9, wait_seconds_bucket)",
    "histogram_quantile(0.5, rate(wait_seconds_bucket[5m]))",
    "histogram_quantile(0.01, sum by (le) (rate(wait_seconds_bucket[5m])))",
    "histogram_quantile(0.99, sum by (le, node) (increase(wait_seconds_bucket[2m])))",
    "histogram_quantile(1, wait_seconds_bucket)",
    "histogram_quantile(0, wait_seconds_bucket)",
    "histogram_quantile(-1, wait_seconds_bucket)",
    "histogram_quantile(2, wait_seconds_bucket)",
    "histogram_quantile(NaN, wait_seconds_bucket)",
    "histogram_quantile(scalar(tiny), wait_seconds_bucket)",
    "histogram_quantile(0.5, depth_bucket)",
    "histogram_quantile(0.2, endless_bucket)",
    "histogram_quantile(0.5, watts)",
    'histogram_quantile(0.8, wait_seconds_bucket{le=~"1|2.5"})',
    'histogram_quantile(0.8, wait_seconds_bucket{le=~"1|.Inf"})',
    'histogram_quantile(0.8, wait_seconds_bucket{le="+Inf"})',
    "histogram_fraction(0.25, 2.5, wait_seconds_bucket)",
    "histogram_fraction(0.3, 7, rate(wait_seconds_bucket[5m]))",
    "histogram_fraction(3, 1, wait_seconds_bucket)",
    "histogram_fraction(NaN, 1, wait_seconds_bucket)",
    "histogram_fraction(0.5, Inf, wait_seconds_bucket)",
    # labels
    'label_replace(watts, "host", "h-$1", "node", "(.*)")',
    'label_replace(watts, "host", "${x}-$y", "node", "(?P<x>.)(?P<y>z)?")',
    'label_replace(watts, "host", "$$1 $0", "gpu", "[01]")',
    'label_replace(watts, "gpu", "", "node", "a")',
    'label_replace(watts, "gpu", "", "gpu", ".*")',
    'label_replace(watts, "__name__", "w_$1", "gpu", "(.*)")',
    'label_replace(watts, "x", "$1", "nothing", "(.*)")',
    'label_replace(gpu_info, "m", "$1", "model", "(.).*")',
    'label_replace(watts, "x", "$1", "node", "(")',
    'label_replace(watts, "", "$1", "node", "(.*)")',
    'label_join(watts, "where", "/", "node", "gpu", "nothing")',
    'label_join(watts, "where", "/")',
    'label_join(watts, "gpu", "", "node")',
    # matching
    "watts * on (node, gpu) group_left (model) gpu_info",
    "watts * ignoring (model, path) group_left (model, path) gpu_info",
    "gpu_info * on (node, gpu) group_right (model) watts",
    "gpu_info * on (node, gpu) group_right () watts",
    "watts / on (node) group_left () sum by (node) (watts)",
    "sum by (node) (watts) - on (node) group_right () watts",
    "watts * on (node) gpu_info",
    "watts * on (node) group_left gpu_info",
    "watts + on (gpu) group_left (node) watts{node='a'}",
    "watts / busy_seconds_total",
    "watts == bool watts",
    "watts + on (node, gpu) busy_seconds_total",
    "gauge - ignoring (trouble) events_total",
    "gauge + on (trouble, node) events_total offset 1m",
    "gauge > on (number) events_total",
    "gauge > bool on (number) events_total",
    "gauge >= on (number) group_left () events_total",
    "watts and busy_seconds_total",
    "watts and on (node) steps",
    "watts and on () only",
    "watts and on () missing",
    "watts unless on (node) steps",
    "watts unless on (node, gpu) (busy_seconds_total > 500)",
    "watts or gauge",
    "watts or on (node) gauge",
    "gauge or on (node) watts",
    "(watts > 300) or (watts < 200)",
    "watts or ignoring (gpu) watts",
    "watts > 400 and watts < 500 or gauge unless steps",
    "watts{gpu='0'} + ignoring (gpu) watts{gpu='1'}",
    "watts + ignoring (gpu) watts",
    '{__name__=~"watts|busy_seconds_total"} + 1',
    'abs({__name__=~"watts|busy_seconds_total"})',
    'rate({__name__=~"watts|busy_seconds_total"}[5m])',
    'sum({__name__=~"watts|gauge"}) by (__name__)',
    'sum without (gpu, node) ({__name__=~"watts|busy_seconds_total"})',
    'last_over_time({__name__=~"watts|busy_seconds_total"}[1m])',
    'timestamp({__name__=~"watts|only"} offset 1m)',
    "timestamp(watts @ end())",
    "timestamp(timestamp(watts))",
    "timestamp(gauge + 0)",
    # subqueries
    "max_over_time(rate(events_total[2m])[30m:1m])",
    "avg_over_time((gauge > 300)[10m:30s])",
    "sum_over_time(max_over_time(gauge[5m:1m])[10m:2m])",
    "rate(busy_seconds_total[5m:15s])",
    "deriv(rate(busy_seconds_total[1m])[5m:30s])",
    "min_over_time(sum(watts)[5m:13s] offset 2m)",
    "count_over_time(watts[5m:1m] @ end())",
    "max_over_time((time() - max(gauge @ start()))[5m:1m])",
    "sum_over_time(vector(1)[1h:1m])",
    "last_over_time(gauge[10m:7s] @ 1700003600.5)",
    "increase(gauge[5m:1m] @ start() offset -10m)",
    # errors in both engines
    "sum(",
    "rate(watts)",
    "watts[5m]",
    "missing[0s]",
    "nonsense(watts)",
    "watts + on (node) group_left (node) steps",
    "1 and 2",
    "1 == 2",
    "{}",
    "watts{node=~'('}",
]


def by_hand() -> Iterator[str]:
    yield from BY_HAND
    for function in RANGE_FUNCTIONS:
        for selector in RANGES:
            yield f"{function}({selector})"
    for function in VALUE_FUNCTIONS:
        # At several hundred, exponentials overflow; the exact limit depends on the mathematical library.
        for selector in ("gauge / 10", "gauge", "tiny", "angle", "watts offset 1m", "huge"):
            if function not in ("exp", "sinh", "cosh") or selector in ("gauge / 10", "tiny", "angle"):
                yield f"{function}({selector})"
    for function in DATE_FUNCTIONS:
        yield f"{function}(moment)"
    for aggregation in AGGREGATIONS:
        for grouping in GROUPINGS:
            yield f"{aggregation} {grouping} (watts)"
            yield f"{aggregation} {grouping} (gauge)"
    for operator in ARITHMETIC:
        yield f"gauge {operator} 2.5"
        yield f"2.5 {operator} gauge"
        yield f"watts {operator} ignoring () watts offset 3m"
        yield f"gauge {operator} scalar(tiny)"
    for operator in COMPARISONS:
        yield f"gauge {operator} 300"
        yield f"300 {operator} gauge"
        yield f"gauge {operator} bool 300"
        yield f"300 {operator} bool gauge"
        yield f"watts {operator} watts offset 1m"
        yield f"watts {operator} bool watts offset 1m"


def random_expressions(seed: int, count: int) -> Iterator[str]:
    maker = _Maker(random.Random(seed))
    for _ in range(count):
        yield maker.vector(3)


class _Maker:
    """Generates expressions of correct types; many have no result, which must be equal on both sides too.

    Only operations that do not amplify rounding errors are nested: two mathematical libraries differ in the
    last bit of a logarithm, which a remainder of its exponential, or the deviation of large numbers, amplifies.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def vector(self, depth: int) -> str:
        pick = self._rng.choice
        if depth == 0 or self._rng.random() < 0.1:
            return pick(VECTORS)
        kind = self._rng.randrange(8)
        if kind <= 1:
            return f"{pick(STEADY_RANGE_FUNCTIONS)}({self.ranged(depth)})"
        if kind == 2:
            return f"{pick(STEADY_FUNCTIONS)}({self.vector(depth - 1)})"
        if kind == 3:
            return f"{pick(STEADY_AGGREGATIONS)} {pick(GROUPINGS)} ({self.vector(depth - 1)})"
        if kind == 4:
            return f"({self.vector(depth - 1)}) {self.operator()} {self.scalar(depth - 1)}"
        if kind == 5:
            return f"{self.scalar(depth - 1)} {self.operator()} ({self.vector(depth - 1)})"
        if kind == 6:
            return self.joined(depth)
        return f"quantile {pick(GROUPINGS)} ({self._rng.random():.2f}, {self.vector(depth - 1)})"

    def joined(self, depth: int) -> str:
        left, right = self.vector(depth - 1), self.vector(depth - 1)
        how = self._rng.choice(["", "on (node)", "on (node, gpu)", "ignoring (gpu)", "on ()"])
        if self._rng.random() < 0.4:
            return f"({left}) {self._rng.choice(['and', 'or', 'unless'])} {how} ({right})"
        if how and self._rng.random() < 0.5:
            how += self._rng.choice([" group_left ()", " group_right ()"])
        # Filtering comparisons are left out: 3.x releases differ on which ambiguous matches are errors.
        return f"({left}) {self._rng.choice(STEADY_ARITHMETIC)} {how} ({right})"

    def ranged(self, depth: int) -> str:
        if depth <= 1 or self._rng.random() < 0.6:
            return self._rng.choice(RANGES)
        length, step = self._rng.choice(["5m", "11m", "30m"]), self._rng.choice(["", "30s", "1m", "113s"])
        offset = self._rng.choice(["", " offset 3m", " offset -2m", " @ end()"])
        return f"({self.vector(depth - 1)})[{length}:{step}]{offset}"

    def scalar(self, depth: int) -> str:
        if depth <= 0 or self._rng.random() < 0.8:
            return self._rng.choice(
                ["0", "1", "2.5", "-3", "100", "1e9", "NaN", "Inf", "time()", "scalar(only)"]
            )
        return f"scalar({self.vector(depth - 1)})"

    def operator(self) -> str:
        operator = self._rng.choice(STEADY_ARITHMETIC + COMPARISONS)
        if operator in COMPARISONS and self._rng.random() < 0.4:
            return f"{operator} bool"
        return operator
