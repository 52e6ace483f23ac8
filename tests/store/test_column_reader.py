"""Wide reads compared with a plain model: rows of heads, gaps, late and sealed samples, shared series."""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import pytest

from gpuscope.history.store import Store, Tick, column_reader, recent_columns
from gpuscope.history.store.head import Head
from gpuscope.model.series import Labels
from gpuscope.model.series_columns import SeriesColumns
from tests.store.support import EVER, NOW, HandClock, as_contents, bits, labels, named, tick, timed_tick

STEP = 15_000
Model = dict[Labels, dict[int, int]]


def check(store: Store, model: Model, spans: list[tuple[int, int]], name: str = "x") -> None:
    for start, end in spans:
        inside = {
            one: {at: value for at, value in samples.items() if start <= at <= end}
            for one, samples in model.items()
        }
        expected = {one: samples for one, samples in inside.items() if samples}
        assert as_contents(store.select_columns(named(name), start, end).series()) == expected
        newest = {one: {max(samples): samples[max(samples)]} for one, samples in expected.items()}
        assert as_contents(store.latest_columns(named(name), start, end).series()) == newest


def spans(rng: np.random.Generator, now: int) -> list[tuple[int, int]]:
    found = [EVER, (now - 300_000, now), (now, now), (now + STEP, now + STEP)]
    for _ in range(6):
        start, end = sorted(rng.integers(NOW - 60_000, now + 60_000, 2).tolist())
        found.append((start, end))
    return found


@pytest.mark.parametrize(
    ("min_targets", "many_targets", "rows_per_query"),
    [(1, recent_columns.MANY_TARGETS, 5), (1, 1, 1), (column_reader.MIN_TARGETS, 1, 5)],
    ids=["kept", "kept-row-by-row", "not-kept"],
)
@pytest.mark.parametrize("seed", range(6))
def test_random_histories(
    store: Store,
    clock: HandClock,
    seed: int,
    min_targets: int,
    many_targets: int,
    rows_per_query: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Targets with gaps, vanishing and new series, out-of-order and late samples, and seals in between; with
    rows kept between queries, and without; with one new row of each target, and with several."""
    monkeypatch.setattr(column_reader, "MIN_TARGETS", min_targets)
    monkeypatch.setattr(recent_columns, "MANY_TARGETS", many_targets)
    rng = np.random.default_rng(seed)
    model: Model = defaultdict(dict)
    targets = [store.target(f"node{number}") for number in range(4)]
    sets = [[labels("x", node=str(n), gpu=str(g)) for g in range(5)] for n in range(4)]
    if seed % 3 == 2:  # a series that two targets write
        sets[1][0] = sets[0][0]
    series = [store.resolve(*pair) for pair in zip(targets, sets, strict=True)]
    for number in range(60):
        clock.at = NOW + number * STEP
        for node, target in enumerate(targets):
            chosen = np.flatnonzero(rng.random(5) < (0.7 if node else 1.0))
            if not len(chosen):
                continue
            at = clock.at + node * 7
            if node == 3 and rng.random() < 0.3:
                at -= int(rng.integers(0, 20 * STEP))
            numbers = np.round(rng.random(len(chosen)), 3)
            store.append(tick(target, at, series[node][chosen], numbers))
            for gpu, value in zip(chosen.tolist(), numbers.tolist(), strict=True):
                model[sets[node][gpu]].setdefault(at, bits(value))
        if number in (25, 45):
            store.seal()
        if number % rows_per_query == rows_per_query - 1:
            check(store, model, spans(rng, clock.at))
    check(store, model, spans(rng, clock.at))


def test_scattered_samples(store: Store, clock: HandClock) -> None:
    """Series with their own timestamps are in the head's side list."""
    rng = np.random.default_rng(1)
    model: Model = defaultdict(dict)
    target, sets = store.target("remote"), [labels("x", n=str(n)) for n in range(80)]
    series = store.resolve(target, sets)
    for number in range(4):
        times = NOW + number * STEP + rng.integers(0, STEP, len(sets))
        numbers = rng.random(len(sets))
        rows = zip(series.tolist(), times.tolist(), numbers.tolist(), strict=True)
        store.append(timed_tick(target, list(rows)))
        for one, at, value in zip(sets, times.tolist(), numbers.tolist(), strict=True):
            model[one].setdefault(at, bits(value))
    clock.at = NOW + 4 * STEP
    check(store, model, spans(rng, clock.at))


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (40, 8), (2_500, 8)])
def test_one_to_twenty_thousand_series(store: Store, clock: HandClock, nodes: int, gpus: int) -> None:
    model: Model = defaultdict(dict)
    rng = np.random.default_rng(nodes)
    made = []
    for node in range(nodes):
        sets = [labels("x", node=str(node), gpu=str(gpu)) for gpu in range(gpus)]
        target = store.target(f"node{node}")
        made.append((target, sets, store.resolve(target, sets)))
    for number in range(3):
        clock.at = NOW + number * STEP
        ticks = []
        for target, sets, series in made:
            numbers = rng.random(gpus)
            at = clock.at + target % 100
            ticks.append(Tick(target, at, series, numbers))
            for one, value in zip(sets, numbers.tolist(), strict=True):
                model[one][at] = bits(value)
        for future in [store.submit(one) for one in ticks]:
            future.result()
    check(store, model, [EVER, (NOW, NOW + STEP + 50)])


def test_series_that_appear_and_vanish(store: Store, clock: HandClock) -> None:
    target = store.target("node")
    old, new = labels("x", pod="old"), labels("x", pod="new")
    first, second = store.resolve(target, [old, new]).tolist()
    store.append(tick(target, NOW, [first], [1.0]))
    model: Model = {old: {NOW: bits(1.0)}}
    check(store, model, [EVER])
    store.append(tick(target, NOW + STEP, [second], [2.0]))
    model[new] = {NOW + STEP: bits(2.0)}
    clock.at = NOW + STEP
    check(store, model, [EVER, (NOW, NOW), (NOW + 1, NOW + STEP)])
    store.seal()
    store.append(tick(target, NOW + 2 * STEP, [second], [3.0]))
    model[new][NOW + 2 * STEP] = bits(3.0)
    check(store, model, [EVER, (NOW, NOW), (NOW + 1, NOW + STEP), (NOW + STEP, NOW + 2 * STEP)])


def test_labels_stay_readable_after_their_series_are_deleted(store: Store) -> None:
    target = store.target("node")
    store.append(tick(target, NOW, store.resolve(target, [labels("x", pod="gone")]), [1.0]))
    found = store.select_columns(named("x"), *EVER)
    store.delete_series(named("x"))
    store.maintain()
    assert list(found.labels) == [labels("x", pod="gone")]
    assert len(store.select_columns(named("x"), *EVER)) == 0


@pytest.mark.parametrize("min_targets", [1, column_reader.MIN_TARGETS], ids=["kept", "not-kept"])
def test_reads_beside_a_writer_see_whole_rows(
    store: Store, clock: HandClock, min_targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tick writes its number to all series of a target, and seals happen in between."""
    monkeypatch.setattr(column_reader, "MIN_TARGETS", min_targets)
    monkeypatch.setattr(recent_columns, "MANY_TARGETS", 1)
    made = []
    for node in range(5):
        target = store.target(f"node{node}")
        sets = [labels("x", node=str(node), gpu=str(gpu)) for gpu in range(6)]
        made.append((target, store.resolve(target, sets)))
    clock.at = NOW + 200 * STEP

    def write() -> None:
        for number in range(200):
            futures = [
                store.submit(tick(target, NOW + number * STEP, series, [float(number)] * 6))
                for target, series in made
            ]
            for future in futures:
                future.result()
            if number % 50 == 49:
                store.seal()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while writer.is_alive() or not reads:
        reads += 1
        _check_rows(store.latest_columns(named("x"), *EVER))
        _check_rows(store.select_columns(named("x"), *EVER))
        newest = int(store.latest_columns(named("x"), *EVER).times.max(initial=NOW))
        _check_rows(store.select_columns(named("x"), newest - 10 * STEP, newest + STEP))
    writer.join()
    assert len(store.latest_columns(named("x"), *EVER)) == 30


def _check_rows(found: SeriesColumns) -> None:
    newest: dict[str, set[int]] = defaultdict(set)
    for series in found.series():
        expected = (series.timestamps - NOW) / STEP
        assert (series.values == expected).all()
        assert (np.diff(series.timestamps) == STEP).all()
        newest[dict(series.labels)["node"]].add(int(series.timestamps[-1]))
    assert all(len(times) == 1 for times in newest.values())


def test_a_sample_added_to_a_known_row(store: Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some remote writers send the series of one scrape in several requests."""
    monkeypatch.setattr(column_reader, "MIN_TARGETS", 1)
    target, sets = store.target("node"), [labels("x", gpu=str(gpu)) for gpu in range(20)]
    series = store.resolve(target, sets)
    model: Model = {one: {NOW: bits(1.0)} for one in sets}
    store.append(tick(target, NOW, series, [1.0] * 20))
    clock.at = NOW + STEP
    for part in (slice(0, 10), slice(10, 20)):
        store.append(tick(target, NOW + STEP, series[part], [2.0] * 10))
        for one in sets[part]:
            model[one][NOW + STEP] = bits(2.0)
        for _ in range(2):  # rows are kept between queries
            check(store, model, [(NOW - STEP, NOW + STEP), (NOW, NOW + 2 * STEP)])


def test_the_rows_of_all_selections_are_limited(
    store: Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two selections of 4 × 5 series: only the rows of one fit."""
    monkeypatch.setattr(column_reader, "MIN_TARGETS", 1)
    monkeypatch.setattr(column_reader, "MAX_BYTES", 4800)
    models: dict[str, Model] = {"x": defaultdict(dict), "y": defaultdict(dict)}
    targets = [store.target(f"node{number}") for number in range(4)]
    seen = set()
    for number in range(6):
        clock.at = NOW + number * STEP
        for node, target in enumerate(targets):
            for name, model in models.items():
                sets = [labels(name, node=str(node), gpu=str(gpu)) for gpu in range(5)]
                ids = store.resolve(target, sets)
                store.append(tick(target, clock.at + (name == "y"), ids, [float(number)] * 5))
                for one in sets:
                    model[one][clock.at + (name == "y")] = bits(float(number))
        for name, model in models.items():
            for span in ((clock.at - 4 * STEP, clock.at + 5), (NOW, clock.at + 5)):
                check(store, model, [span], name)
                seen.add(store.stats().kept_rows_bytes)
    assert 4800 // 2 < min(seen) <= max(seen) <= 4800  # one selection is kept, never two


@pytest.mark.parametrize(("max_bytes", "kept"), [(24 * 8 * 16, 24 * 8 * 16), (24 * 8 * 16 - 1, 0)])
def test_the_rows_of_one_selection_are_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch, max_bytes: int, kept: int
) -> None:
    monkeypatch.setattr(column_reader, "MIN_TARGETS", 1)
    monkeypatch.setattr(recent_columns, "MAX_BYTES", max_bytes)
    model: Model = {}
    for node in range(4):
        target = store.target(f"node{node}")
        sets = [labels("x", node=str(node), gpu=str(gpu)) for gpu in range(5)]
        store.append(tick(target, NOW, store.resolve(target, sets), [1.0] * 5))
        model |= {one: {NOW: bits(1.0)} for one in sets}
    for _ in range(2):
        assert as_contents(store.select_columns(named("x"), NOW - STEP, NOW).series()) == model
        assert store.stats().kept_rows_bytes == kept


def test_rows_are_kept_only_while_their_selection_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reader, "MIN_TARGETS", 1)
    target = store.target("node")
    sets = [labels("x", gpu=str(gpu)) for gpu in range(20)]
    store.append(tick(target, NOW, store.resolve(target, sets), [1.0] * 20))
    store.select_columns(named("x"), NOW - STEP, NOW)
    assert store.stats().kept_rows_bytes == 8 * 16 * (20 + 1)
    store.delete_series(named("x"))
    store.maintain()
    store.select_columns(named("x"), NOW - STEP, NOW)
    assert store.stats().kept_rows_bytes == 0


def test_new_rows_of_many_targets_are_added_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heads are not read again: that is a few operations for each target, in each round of the checks."""
    monkeypatch.setattr(column_reader, "MIN_TARGETS", 1)
    targets = [store.target(f"node{number}") for number in range(recent_columns.MANY_TARGETS)]
    series = [
        store.resolve(target, [labels("x", node=str(target), gpu=gpu) for gpu in "01"]) for target in targets
    ]

    def scrape(at: int) -> None:
        for target, ids in zip(targets, series, strict=True):
            store.append(tick(target, at, ids, np.array([at % 7.0, 1.0])))

    scrape(NOW)
    scrape(NOW + STEP)
    store.select_columns(named("x"), NOW - STEP, NOW + STEP)
    scrape(NOW + 2 * STEP)
    monkeypatch.setattr(Head, "rows_since", lambda self, start: pytest.fail("a head was read"))
    columns = store.select_columns(named("x"), NOW - STEP, NOW + 2 * STEP)
    assert columns.lengths.tolist() == [3] * len(columns)
    assert {one.values[-1] for one in columns.series()} == {(NOW + 2 * STEP) % 7.0, 1.0}
