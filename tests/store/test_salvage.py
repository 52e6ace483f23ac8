"""Damage that SQLite does not detect, or that makes the file unreadable: the store starts with the intact
part."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.store import Store, StoreDamagedError
from gpuscope.history.store.salvage import committed_frames
from gpuscope.history.store.schema import FILE_NAME
from tests.store.support import HandClock, SamplesByLabels, contents_of, fill, labels, tick, timed_tick


def filled_store(folder: Path, clock: HandClock) -> SamplesByLabels:
    with Store(folder, clock=clock) as store:
        fill(store, clock, 30, step=300_000, width=40)
        store.maintain()
        store.compact()
        return contents_of(store)


def patch(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def assert_writable(store: Store, clock: HandClock) -> None:
    target = store.target("new")
    ids = store.resolve(target, [labels("after", x="y")]).tolist()
    assert store.append(tick(target, clock.at, ids, [1.0])).accepted == 1
    assert store.check().problems == []


def count_samples(contents: SamplesByLabels) -> int:
    return sum(map(len, contents.values()))


def _pairs(samples: dict[int, int]) -> list[tuple[int, int]]:
    return sorted(samples.items())


def copy_of_open_store(folder: Path, copy: Path) -> list[int]:
    """As kill -9 leaves it: 20 commits, each with a new series, in the write-ahead log."""
    clock = HandClock()
    with Store(folder, clock=clock) as store:
        target = store.target("node")
        for number in range(20):
            clock.at += 15_000
            ids = store.resolve(target, [labels("m", number=str(number))])
            store.append(tick(target, clock.at, ids, [1.0]))
        shutil.copytree(folder, copy)
    return committed_frames(copy / FILE_NAME)


@pytest.mark.parametrize(("place", "kept"), [("header", 0), ("first frame", 0), ("middle", 10), ("salts", 10)])
def test_a_damaged_write_ahead_log_is_said(
    tmp_path: Path, place: str, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    committed = copy_of_open_store(tmp_path / "a", tmp_path / "b")
    wal = tmp_path / "b" / f"{FILE_NAME}-wal"
    data = bytearray(wal.read_bytes())
    frame_bytes = 24 + 4096
    after = committed[-11]  # ten of the appends come after this frame
    at = {"header": 17, "first frame": 32 + 300, "middle": 32 + after * frame_bytes + 500}
    data[at.get(place, 32 + after * frame_bytes + 9)] ^= 0xFF
    wal.write_bytes(data)
    with Store(tmp_path / "b") as store:
        assert len(store.label_values("number")) == kept
        lost = sum(number > after for number in committed) if kept else len(committed)
        assert f"of its {len(committed)} transactions {lost} are lost" in caplog.text
        assert "is damaged" in str(store.own_stats.last_error)


@pytest.mark.parametrize("cut", [0, 1, 3000, 24 + 4096])
def test_an_interrupted_write_is_no_damage(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    copy_of_open_store(tmp_path / "a", tmp_path / "b")
    wal = tmp_path / "b" / f"{FILE_NAME}-wal"
    wal.write_bytes(wal.read_bytes() + (bytes(100) if not cut else b""))
    if cut:
        wal.write_bytes(wal.read_bytes()[:-cut])
    with Store(tmp_path / "b") as store:
        assert len(store.label_values("number")) >= 18
    assert "damaged" not in caplog.text


def test_a_damaged_label_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    before = filled_store(tmp_path, clock)
    patch(tmp_path / FILE_NAME, b"__name__m7", b"__na\xffe__m7")
    with pytest.raises(StoreDamagedError):
        Store(tmp_path, clock=clock, read_only=True)
    with Store(tmp_path, clock=clock) as store:
        after = contents_of(store)
        assert count_samples(after) == count_samples(before)
        changed = after.keys() - before.keys()
        assert [dict(one) for one in changed] == [{"__na�e__": "m7", "node": "a"}]
        assert_writable(store, clock)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("bad", [999, -5, 2**31 - 1, 0])
def test_a_bad_pair_number(tmp_path: Path, bad: int) -> None:
    clock = HandClock()
    before = filled_store(tmp_path, clock)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    for sid in (3, 4):
        (packed,) = db.execute("SELECT pairs FROM series WHERE id = ?", (sid,)).fetchone()
        numbers = np.frombuffer(packed, "<i4").copy()
        numbers[-1] = bad
        db.execute("UPDATE series SET pairs = ? WHERE id = ?", (numbers.tobytes(), sid))
    db.execute("UPDATE series SET pairs = x'010000' WHERE id = 5")
    db.commit()
    db.close()
    with Store(tmp_path, clock=clock) as store:
        after = contents_of(store)
        assert count_samples(after) == count_samples(before)
        assert len(after.keys() & before.keys()) == 37
        assert store.label_values("__name__")
        assert_writable(store, clock)
    with Store(tmp_path, clock=clock) as store:
        assert count_samples(contents_of(store)) == count_samples(before) + 1


@pytest.mark.parametrize("length", [16, 100, 12_288, 20_480])
def test_noise_at_the_start_of_the_file(tmp_path: Path, length: int) -> None:
    clock = HandClock()
    before = filled_store(tmp_path, clock)
    noise = random.Random(length).randbytes(length)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(noise)
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before
        assert_writable(store, clock)
    (page,) = tmp_path.glob("*.page1")
    assert page.read_bytes()[:length] == noise[:4096]


@pytest.mark.parametrize("length", [24_576, 28_672])
def test_samples_survive_the_loss_of_labels_and_of_series(tmp_path: Path, length: int) -> None:
    """The noise covers the root pages of `pair`, then of `series`; series get generated labels."""
    clock = HandClock()
    filled_store(tmp_path, clock)
    with Store(tmp_path, clock=clock) as store:
        target = store.target("scattered")
        a, b = store.resolve(target, [labels("a"), labels("b")]).tolist()
        store.append(timed_tick(target, [(a, clock.at, 1.0), (b, clock.at - 7, 2.0)]))
        store.compact()
        before = contents_of(store)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(random.Random(length).randbytes(length))
    with Store(tmp_path, clock=clock) as store:
        after = contents_of(store)
        assert sorted(map(_pairs, after.values())) == sorted(map(_pairs, before.values()))
        assert_writable(store, clock)


def test_noise_at_the_start_of_a_file_with_a_wal(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 5)
        before = contents_of(store)
        files = {path.name: path.read_bytes() for path in tmp_path.glob(f"{FILE_NAME}*")}
    for name, data in files.items():
        if not name.endswith("-shm"):
            (tmp_path / name).write_bytes(data)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(b"noise" * 800)
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before


def test_a_file_migrated_from_the_first_version_has_the_same_first_pages(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        db = store.write_side().db
        db.execute("DROP TABLE late")
        db.execute("DELETE FROM migration WHERE version > 1")
        fill(store, clock, 20)
    before = filled_store(tmp_path, clock)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(b"noise" * 800)
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before


def test_rows_with_wrong_types(tmp_path: Path) -> None:
    clock = HandClock()
    before = filled_store(tmp_path, clock)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("UPDATE pair SET value = x'00ff' WHERE id = 5")
    db.execute("UPDATE target SET floor = 'soon'")
    db.execute("UPDATE series SET pairs = 'text' WHERE id = 9")
    db.commit()
    db.close()
    with Store(tmp_path, clock=clock) as store:
        assert count_samples(contents_of(store)) == count_samples(before)
        assert_writable(store, clock)
