"""Export, backup, statistics and read-only access."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpuscope.history.store import Store, StoreClosedError, StoreError, Tick
from gpuscope.history.store.options import HOUR_MS
from gpuscope.model.series import STALE_NAN_BITS, Matcher, MatchOp
from tests.store.support import EVER, NOW, HandClock, contents_of, equal, fill, labels, named, tick


def test_another_parser_reads_the_openmetrics_export(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 3)
        target = store.target("odd")
        odd = store.resolve(target, [labels("odd_total", path='a\\b"c\nd'), labels("gone")])
        stale = float(np.int64(STALE_NAN_BITS).view(np.float64))
        store.append(tick(target, NOW + 1, odd, [float("-inf"), stale]))
        text = "".join(store.export())
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"m0", "m1", "m2", "odd_total"}
    assert len(families["m1"].samples) == 180
    assert float(families["m1"].samples[0].timestamp) == NOW / 1000
    sample = families["odd_total"].samples[0]
    assert sample.labels == {"path": 'a\\b"c\nd'}
    assert sample.value == float("-inf")
    assert text.endswith("# EOF\n")


def test_utf8_names_are_quoted(tmp_path: Path) -> None:
    with Store(tmp_path, clock=HandClock()) as store:
        target = store.target("t")
        store.append(tick(target, NOW, store.resolve(target, [labels("a.b", **{"x-y": "1\x00"})]), [1.0]))
        assert "".join(store.export()).splitlines()[:2] == [
            '# TYPE "a.b" unknown',
            '{"a.b","x-y"="1\x00"} 1.0 1700000000.000',
        ]
    with Store(tmp_path, clock=HandClock()) as store:
        assert store.label_values("x-y") == ["1\x00"]


def test_the_export_can_be_filtered(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        text = "".join(store.export(named("m2"), NOW + 60_000, NOW + 120_000))
        assert text.count("\n") == 4
        assert "".join(store.export(named("nothing"))) == "# EOF\n"


def test_a_backup_of_a_running_store_can_be_opened(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path / "data", clock=clock) as store:
        fill(store, clock, 5)
        store.maintain()
        store.start()
        expected = contents_of(store)
        store.backup(tmp_path / "copy")
        fill(store, clock, 1)
        with pytest.raises(StoreError, match="exists already"):
            store.backup(tmp_path / "copy")
    with Store(tmp_path / "copy", clock=clock) as copy:
        assert contents_of(copy) == expected
        assert copy.check().problems == []


def test_a_read_only_store_sees_one_moment(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 5)
        expected = contents_of(store)
        with Store(tmp_path, clock=clock, read_only=True) as beside:
            assert contents_of(beside) == expected
            fill(store, clock, 40)
            store.maintain()
            assert contents_of(beside) == expected
            assert beside.check().problems == []
            assert beside.stats().head_samples == 5 * 60 * 3
            with pytest.raises(StoreClosedError, match="read-only"):
                beside.target("x")
    with pytest.raises(StoreError, match="no store in"):
        Store(tmp_path / "nowhere", read_only=True)


def test_label_names_and_values_respect_matchers_and_time(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        early = store.target("early")
        ids = store.resolve(early, [labels("a", x="1"), labels("b", y="2")])
        store.append(tick(early, NOW, ids, [1.0, 2.0]))
        clock.at += 10 * HOUR_MS
        store.maintain()
        late = store.target("late")
        store.append(tick(late, clock.at, store.resolve(late, [labels("c", x="3")]), [1.0]))
        assert store.label_names() == ["__name__", "x", "y"]
        assert store.label_names([equal("__name__", "b")]) == ["__name__", "y"]
        assert store.label_values("x") == ["1", "3"]
        assert store.label_values("x", (), NOW - 1, NOW + 1) == ["1"]
        assert store.label_values("x", [Matcher("x", MatchOp.NOT_EQUAL, "")], clock.at, None) == ["3"]
        assert store.label_values("nothing") == []
        assert store.series([], None, NOW) == [labels("a", x="1"), labels("b", y="2")]
        assert store.series([equal("x", "3")]) == [labels("c", x="3")]
        cardinality = store.cardinality()
        assert cardinality.series == 3
        assert cardinality.by_label[0] == ("__name__", 3)
        assert ("x", 2) in cardinality.by_label
        assert dict(cardinality.by_metric) == {"a": 1, "b": 1, "c": 1}


def test_the_latest_sample_comes_from_head_or_block(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        end = clock.at
        for sealed in (False, True):
            if sealed:
                store.seal()
            found = store.latest([], end - 300_000, end)
            assert [one.timestamps.tolist() for one in found] == [[end - 60_000]] * 3
            assert [len(one.values) for one in found] == [1, 1, 1]
            assert store.latest([], end - 100, end) == []
        # One series continues, the others have only sealed samples.
        first = store.resolve(store.target("node"), [labels("m0", node="a")])
        store.append(Tick(store.target("node"), end, first, np.ones(1)))
        times = {
            dict(one.labels)["__name__"]: one.timestamps.tolist()
            for one in store.latest([], end - 300_000, end)
        }
        assert times == {"m0": [end], "m1": [end - 60_000], "m2": [end - 60_000]}


def test_queries_on_an_empty_store(tmp_path: Path) -> None:
    with Store(tmp_path, clock=HandClock()) as store:
        assert store.select([], *EVER) == []
        assert store.latest([], *EVER) == []
        assert store.label_names([], 0, 1) == []
        assert store.stats().bytes_per_sample is None
        assert store.check().problems == []
        store.maintain()
        store.seal()
        store.compact()
        assert store.delete_series([]) == 0
