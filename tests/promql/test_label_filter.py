"""An expression that reads only the label sets it needs gives the same result as one that reads all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.history.promql import Engine, PromQLError, Vector
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.history.store.column_reader import ColumnReader
from gpuscope.history.store.selections import SeriesSelection
from tests.examples import examples

NOW_MS = 1_800_000_000_000
NODES, GPUS, MINUTES = 12, 4, 90


def _fill(store: Store) -> None:
    """Metrics `a`, `b` and `up` of each GPU or node. Some nodes end early, others begin late; some GPUs have
    no `b`."""
    for node in range(NODES):
        target = store.target(f"node-{node}")
        gpus = [{"instance": f"n{node}", "uuid": f"g{node}-{gpu}", "gpu": str(gpu)} for gpu in range(GPUS)]
        series = [{"__name__": "up", "instance": f"n{node}", "job": "j"}]
        series += [{"__name__": "a", "job": "j", **one} for one in gpus]
        series += [
            {"__name__": "b", "job": "j", "pid": f"{node}{k}", **gpus[k]} for k in range(node % (GPUS + 1))
        ]
        ids = store.resolve(target, [tuple(sorted(one.items())) for one in series])
        begin = 30 if node % 4 == 1 else 0
        end = MINUTES - 40 if node % 3 == 2 else MINUTES
        for minute in range(begin, end):
            values = [float(node % 2), *[float((minute + node * gpu) % 5) for gpu in range(len(series) - 1)]]
            at_ms = NOW_MS - (MINUTES - 1 - minute) * 60_000
            store.append(Tick(target, at_ms, ids, np.array(values)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("store")
    with Store(folder, StoreOptions(max_ahead_ms=1 << 60)) as opened:
        opened.start()
        _fill(opened)
        opened.seal()
        yield opened


ON = st.sampled_from(["", "on (instance)", "on (instance, uuid)", "on (uuid)", "on ()", "ignoring (gpu)",
                      "ignoring (pid)"])  # fmt: skip
SELECTORS = st.sampled_from(["a", "b", "up", 'a{gpu="1"}', "b offset 10m", "up offset 80m", "missing"])


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    by = st.sampled_from(
        ["by (instance)", "by (instance, uuid)", "by ()", "without (gpu)", "without (uuid, pid)"]
    )
    compared = st.tuples(inner, st.sampled_from(["== 0", "> 2", "< 1", "* 2", "!= 3"])).map(" ".join)
    return st.one_of(
        compared.map(lambda text: f"({text})"),
        st.tuples(inner, st.sampled_from(["and", "unless", "or"]), ON, inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(
            inner,
            st.sampled_from(["*", ">", "-"]),
            st.sampled_from(["on (instance, uuid)", "on (instance)", "ignoring (pid)", ""]),
            st.sampled_from(["", "group_left ()", "group_left (pid)", "group_right ()"]),
            inner,
        ).map(lambda parts: f"({' '.join(part for part in parts if part)})"),
        st.tuples(st.sampled_from(["max", "count", "sum"]), by, inner).map(lambda p: f"{p[0]} {p[1]} ({p[2]})"),
        st.tuples(st.sampled_from(["max_over_time", "last_over_time", "count_over_time"]), inner,
                  st.sampled_from(["[80m:5m]", "[5m:1m]"])).map(lambda p: f"{p[0]}(({p[1]}){p[2]})"),
        st.sampled_from(["a", "b"]).map(lambda name: f"rate({name}[20m])"),
        inner.map(lambda text: f"-({text})"),
        inner.map(lambda text: f"absent({text})"),
        inner.map(lambda text: f"({text} * scalar(sum(a)))"),
        inner.map(lambda text: f'label_replace({text}, "uuid", "$1", "instance", "(.+)")'),
    )  # fmt: skip


EXPRESSIONS = st.recursive(SELECTORS, _extend, max_leaves=5)


def _evaluate(store: Store, expression: str, *, skips: bool) -> list[tuple[object, str]]:
    engine = Engine(store, skips_unneeded=skips)
    result = engine.range(expression, NOW_MS - 60_000 * 20, NOW_MS, 300_000)
    return [
        (labels, np.where(present, values, np.nan).tobytes().hex())
        for labels, values, present in zip(result.labels, result.values, result.present, strict=True)
    ]


def _instant(store: Store, expression: str, *, skips: bool) -> dict[object, float]:
    result = Engine(store, skips_unneeded=skips).instant(expression, NOW_MS, shared={})
    assert isinstance(result, Vector)
    return dict(zip(result.labels, result.values.tolist(), strict=True))


@settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(expression=EXPRESSIONS)
def test_the_result_is_that_of_all_label_sets(store: Store, expression: str) -> None:
    try:
        whole = _instant(store, expression, skips=False)
        over_time = _evaluate(store, expression, skips=False)
    except PromQLError:
        return  # series that are not needed may be ambiguous
    assert _instant(store, expression, skips=True) == whole
    assert _evaluate(store, expression, skips=True) == over_time


@pytest.mark.parametrize(
    ("expression", "series"),
    [
        # Half of the nodes are up: the past of the others is read.
        ("last_over_time(up[80m:5m]) unless up", 4),
        ("(up offset 70m or up offset 80m) unless on (instance) up", 5),
        ("last_over_time(up[5m]) or last_over_time(up[80m:5m])", 4),
        ('a{gpu="0",instance="n0"} and on (instance, uuid) rate(a[20m])', 1),
        ('a{gpu="0",instance="n0"} * on (instance) group_left () max by (instance) (a offset 80m)', GPUS),
        ('max_over_time((last_over_time(b[5m]) and on (uuid) a{uuid="g3-1"})[80m:5m])', 2),
    ],
)
def test_the_past_is_read_only_of_series_that_are_needed(
    store: Store, monkeypatch: pytest.MonkeyPatch, expression: str, series: int
) -> None:
    counts: list[int] = []
    read, latest = ColumnReader.read, ColumnReader.latest

    def counting_read(
        self: ColumnReader, chosen: SeriesSelection, start: int, end: int, admit: object
    ) -> object:
        counts.append(len(chosen.series) if start < NOW_MS - 6 * 60_000 else 0)
        return read(self, chosen, start, end, admit)  # type: ignore[arg-type]

    def counting_latest(self: ColumnReader, chosen: SeriesSelection, start: int, end: int) -> object:
        counts.append(len(chosen.series) if start < NOW_MS - 6 * 60_000 else 0)
        return latest(self, chosen, start, end)

    monkeypatch.setattr(ColumnReader, "read", counting_read)
    monkeypatch.setattr(ColumnReader, "latest", counting_latest)
    whole = _instant(store, expression, skips=False)
    counts.clear()
    assert _instant(store, expression, skips=True) == whole
    assert sum(counts) == series
