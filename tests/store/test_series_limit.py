"""New series are refused beyond the limits; existing ones continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.store import Store, StoreOptions
from gpuscope.history.store.options import (
    HOUR_MS,
    MINUTE_MS,
    SERIES_BYTES,
    count_series,
    default_max_series,
    memory_bytes,
)
from tests.store.support import NOW, HandClock, contents_of, labels, named, tick


def test_new_series_beyond_the_limit_are_refused_and_existing_ones_continue(tmp_path: Path) -> None:
    clock = HandClock()
    before = LIMITS_REACHED.counts()["max_series"]
    with Store(tmp_path, StoreOptions(max_series=3), clock) as store:
        target = store.target("node")
        names = [labels(f"m{i}") for i in range(5)]
        ids = store.resolve(target, names).tolist()
        assert [bool(one) for one in ids] == [True, True, True, False, False]
        assert store.resolve(target, names[:3]).tolist() == ids[:3]
        assert store.series_refused() == "the store has reached its limit of 3 series (max_series)"
        assert store.append(tick(target, NOW, ids[:3], [1.0, 2.0, 3.0])).accepted == 3
        assert store.resolve(target, [labels("up")], reserved=True)[0] > 0
        assert LIMITS_REACHED.counts()["max_series"] == before + 2
        assert store.stats().max_series == 3
        assert "m3" not in store.label_values("__name__"), "a refused series must not be in the index"
        store.delete_series(named("m0"))
        store.delete_series(named("m1"))
        assert store.resolve(target, [names[4]])[0] > 0
    with Store(tmp_path, StoreOptions(max_series=1), clock) as store:
        assert len(contents_of(store)) == 1, "a lower limit removes no series"
        again = store.target("node")
        assert store.resolve(again, [names[2]])[0] > 0


def test_eight_series_that_have_ended_count_as_one(tmp_path: Path) -> None:
    clock = HandClock()

    def add(store: Store, first: int, count: int) -> int:
        """Write new series once, as a process that ends does; return how many were accepted."""
        target = store.target("node")
        names = [labels("m", pid=str(i // 20), gpu=str(i % 20)) for i in range(first, first + count)]
        ids = [one for one in store.resolve(target, names).tolist() if one]
        clock.at += MINUTE_MS
        store.append(tick(target, clock.at, ids, [1.0] * len(ids)))
        return len(ids)

    with Store(tmp_path, StoreOptions(max_series=200), clock) as store:
        assert add(store, 0, 300) == 200
        store.maintain()
        assert store.stats().counted_series == store.stats().series == 200
        store.seal()
        store.maintain()
        assert store.stats().series == 200
        assert store.stats().counted_series == 25
        store.resolve(store.target("node"), [labels("waits")])
        store.maintain()
        assert store.stats().counted_series == 26, "a series without its first sample has not ended"
        assert add(store, 1000, 300) == 174
    with Store(tmp_path, StoreOptions(max_series=200), clock) as store:
        assert store.stats().series == 375
        assert store.stats().counted_series == 199, "174 that continue, and 201 that have ended"
        assert add(store, 1000, 174) == 174, "known series continue"
        assert add(store, 2000, 5) == 1


def test_ended_series_with_many_labels_of_their_own_count_more() -> None:
    assert count_series(living=1000, ended=0, pairs=9000) == 1000
    assert count_series(living=1000, ended=8000, pairs=1500) == 2000, "they share their labels"
    assert count_series(living=0, ended=8000, pairs=8000) == 2000, "each has one of its own"
    assert count_series(living=0, ended=8000, pairs=80_000) == 8000


def test_long_label_texts_count_as_more_series(tmp_path: Path) -> None:
    with Store(tmp_path, StoreOptions(max_series=100), HandClock()) as store:
        target = store.target("node")
        long = [labels("m", text=f"{i}" + "x" * 40_000) for i in range(10)]
        assert (store.resolve(target, long) > 0).sum() == 4
        assert store.resolve(target, [labels("short")])[0] > 0


def test_max_new_series_within_ten_minutes(tmp_path: Path) -> None:
    before = LIMITS_REACHED.counts()["max_new_series"]
    clock = HandClock()
    with Store(tmp_path, StoreOptions(max_new_series=10), clock) as store:
        target = store.target("node")

        def add(first: int, count: int) -> int:
            return int((store.resolve(target, [labels(f"m{first + i}") for i in range(count)]) > 0).sum())

        assert add(0, 15) == 10
        assert LIMITS_REACHED.counts()["max_new_series"] == before + 5
        assert store.series_refused() == (
            "more than 10 new series from one origin within 10 minutes (max_new_series)"
        )
        assert add(0, 10) == 10, "known series"
        clock.at += 5 * MINUTE_MS
        assert add(100, 15) == 5
        clock.at -= HOUR_MS
        assert add(200, 5) == 0
        clock.at += 2 * HOUR_MS
        assert add(300, 15) == 10


def group(root: Path, lines: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, 1 << 30),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "2147483648\n"}, 2 << 30),
        ("0::/../elsewhere\n", {"memory.max": "1073741824\n"}, 1 << 30),
        ("0::/a\n", {"a/memory.max": "max\n"}, 8 << 30),
        ("4:memory:/d\n3:cpu:/d\n", {"memory/d/memory.limit_in_bytes": "536870912\n"}, 512 << 20),
        ("4:memory:/host/x\n", {"memory/memory.limit_in_bytes": "536870912\n"}, 512 << 20),
        ("4:memory:/d\n", {"memory/d/memory.limit_in_bytes": "9223372036854771712\n"}, 8 << 30),
        ("", {}, 8 << 30),
        ("nonsense\n0::\n::::\n", {"memory.max": "rubbish"}, 8 << 30),
    ],
)
def test_memory_limit_of_a_container(tmp_path: Path, lines: str, files: dict[str, str], expected: int) -> None:
    assert memory_bytes(group(tmp_path, lines, files)) == expected


def test_unknown_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_bytes(tmp_path) is None
    monkeypatch.setattr("gpuscope.history.store.options.memory_bytes", lambda: None)
    assert default_max_series() == 1_000_000
    monkeypatch.setattr("gpuscope.history.store.options.memory_bytes", lambda: 1 << 30)
    assert default_max_series() == (1 << 28) // SERIES_BYTES


def test_each_origin_has_its_own_allowance(tmp_path: Path) -> None:
    with Store(tmp_path, StoreOptions(max_new_series=10), HandClock()) as store:
        one, other = store.target("a:9400"), store.target("b:9400")
        assert (store.resolve(one, [labels("m", n=str(n)) for n in range(12)]) > 0).sum() == 10
        assert (store.resolve(other, [labels("m", n=f"b{n}") for n in range(10)]) > 0).all()
        # A remote writer chooses the labels and so the target: its origin is its address.
        writer = [
            store.resolve(store.target(f"t{n}"), [labels("w", n=str(n))], origin="10.0.0.1")[0] > 0
            for n in range(12)
        ]
        assert sum(writer) == 10
