"""Disk full, damaged files, a second process, files of other versions."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.store import (
    Store,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreOptions,
    StoreTooNewError,
    Tick,
)
from gpuscope.history.store.schema import FILE_NAME, MIGRATIONS, Migration, connect, migrate
from tests.store.support import EVER, NOW, HandClock, contents_of, fill, labels, named, tick


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MB; needs root."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def grow_until_full(store: Store, clock: HandClock, noise: np.random.Generator) -> int:
    target = store.target("node")
    ids = store.resolve(target, [labels("m", i=str(i)) for i in range(500)])
    for kept in range(5000):
        clock.at += 1000
        try:
            store.append(Tick(target, clock.at, ids, noise.random(500)))
        except StoreFullError:
            return kept
    raise AssertionError("the disk was never full")


def test_ingest_fails_on_a_full_disk_and_recovers(small_disk: Path) -> None:
    clock = HandClock()
    with Store(small_disk / "data", clock=clock) as store:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(1_200_000))
        kept = grow_until_full(store, clock, np.random.default_rng(1))
        full_since = clock.at
        assert kept > 10
        assert store.stats().full_since_ms == full_since
        assert store.stats().failed_commits == 1
        assert len(store.select([], *EVER)[0].values) == kept
        with pytest.raises(StoreFullError):
            store.append(tick(store.target("new"), clock.at, store.resolve(1, [labels("x")]), [1.0]))
        store.maintain()  # fails to seal too, and must not raise
        assert "full" in store.write_problem()
        assert sum(len(one.values) for one in store.select([], *EVER)) == kept * 500
        ballast.unlink()
        store.maintain()  # a server that is not ready may get no samples: it must find out by itself
        assert store.write_problem() == ""
        assert store.stats().full_since_ms is None
        clock.at += 1000
        target = store.target("new")
        assert store.append(tick(target, clock.at, store.resolve(target, [labels("y")]), [1.0])).accepted == 1
        assert store.stats().full_since_ms is None
        expected = contents_of(store)
    with Store(small_disk / "data", clock=clock) as store:
        assert contents_of(store) == expected
        assert store.check().problems == []


def test_ingest_fails_when_sqlite_is_full_and_recovers(tmp_path: Path) -> None:
    """The same without root: SQLite's max_page_count is reached."""
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        db = store.write_side().db
        db.execute("PRAGMA max_page_count = 300")
        kept = grow_until_full(store, clock, np.random.default_rng(2))
        assert kept > 10
        assert store.stats().full_since_ms is not None
        store.start()
        grow_until_full(store, clock, np.random.default_rng(2))
        before = contents_of(store)
        db.execute("PRAGMA max_page_count = 100000")
        store.maintain()
        assert contents_of(store) == before
        assert store.append(tick(store.target("node"), clock.at + 5, [1], [1.0])).accepted == 1
        assert store.stats().full_since_ms is None


def test_a_failed_seal_leaves_everything_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 5)
        before = contents_of(store)
        blocks = store.write_side().blocks
        publish = blocks.publish

        def fail(*arguments: object, **more: object) -> None:
            raise StoreFullError("no room")

        monkeypatch.setattr(blocks, "publish", fail)
        store.maintain()
        assert contents_of(store) == before
        assert store.stats().last_error == "no room"
        monkeypatch.setattr(blocks, "publish", publish)
        store.maintain()
        assert contents_of(store) == before
        assert store.stats().blocks > 0
        assert store.check().problems == []


def test_a_second_process_gets_a_clear_error(tmp_path: Path) -> None:
    with Store(tmp_path, clock=HandClock()):
        opens = f"Store(Path({str(tmp_path)!r}))"
        script = f"from pathlib import Path; from gpuscope.history.store import Store; {opens}"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "StoreLockedError" in other.stderr
        with pytest.raises(StoreLockedError, match=f"in use by process {os.getpid()}: stop it or choose"):
            Store(tmp_path)
    Store(tmp_path).close()


def test_an_old_file_is_migrated_and_keeps_its_data(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        before = contents_of(store)
    newest = MIGRATIONS[-1].version

    def add_note(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE target ADD COLUMN note TEXT")

    add = Migration(newest + 1, "a note", add_note)
    db = connect(tmp_path / FILE_NAME)
    assert migrate(db, NOW) == newest
    assert migrate(db, NOW, (*MIGRATIONS, add)) == newest + 1
    assert migrate(db, NOW, (*MIGRATIONS, add)) == newest + 1
    assert db.execute("SELECT version, name, applied_ms FROM migration").fetchall() == [
        *((step.version, step.name, NOW) for step in MIGRATIONS),
        (newest + 1, "a note", NOW),
    ]
    db.execute("DELETE FROM migration WHERE version = ?", (newest + 1,))
    db.close()
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before


def test_a_file_of_the_first_version_is_read_and_written(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        before = contents_of(store)
    db = connect(tmp_path / FILE_NAME)
    db.execute("DROP TABLE late")
    db.execute("DELETE FROM migration WHERE version > 1")
    db.close()
    with Store(tmp_path, clock=clock, read_only=True) as store:
        assert contents_of(store) == before
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before


def test_a_migration_that_fails_leaves_the_old_version(tmp_path: Path) -> None:
    def half(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE half (x)")
        db.execute("nonsense")

    db = connect(tmp_path / FILE_NAME)
    migrate(db, NOW)
    with pytest.raises(StoreError, match="nonsense"):
        migrate(db, NOW, (*MIGRATIONS, Migration(99, "half", half)))
    assert migrate(db, NOW) == MIGRATIONS[-1].version
    assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)
    db.close()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, clock=HandClock()).close()
    db = connect(tmp_path / FILE_NAME)
    db.execute("INSERT INTO migration VALUES (99, 'later', 0)")
    db.close()
    with pytest.raises(StoreTooNewError, match=r"newer gpuscope \(schema 99"):
        Store(tmp_path)
    with pytest.raises(StoreTooNewError):
        Store(tmp_path)  # the lock was released


def a_store_of_days(folder: Path, clock: HandClock) -> None:
    options = StoreOptions(cache_bytes=0)
    with Store(folder, options, clock) as store:
        fill(store, clock, 60, step=30_000, width=40)
        store.maintain()
        store.compact()


def test_a_file_of_noise_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database, whatever its name says" * 100)
    with Store(tmp_path, clock=HandClock()) as store:
        assert contents_of(store) == {}
        assert "damaged" in (store.stats().last_error or "")
    aside = list(tmp_path.glob("*.damaged-*"))
    assert len(aside) == 1
    assert str(aside[0]) in caplog.text


def test_a_truncated_file_is_salvaged(tmp_path: Path) -> None:
    clock = HandClock()
    a_store_of_days(tmp_path, clock)
    path = tmp_path / FILE_NAME
    os.truncate(path, path.stat().st_size * 6 // 10)
    with Store(tmp_path, clock=clock) as store:
        found = contents_of(store)
        assert 0 < sum(len(times) for times in found.values()) < 40 * 60 * 120
        ids = fill(store, clock, 1)
        assert len(ids) == 3
    assert list(tmp_path.glob("*.damaged-*"))


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_only_rows_on_damaged_pages_are_lost(tmp_path: Path, seed: int) -> None:
    clock = HandClock()
    a_store_of_days(tmp_path, clock)
    path = tmp_path / FILE_NAME
    rng = np.random.default_rng(seed)
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in rng.choice(np.arange(1, pages), 3, replace=False).tolist():
            file.seek(page * 4096)
            file.write(rng.bytes(4096))
    with Store(tmp_path, clock=clock) as store:
        found = store.select([], *EVER)
        for one in found:  # every returned sample is correct
            which = one.values - one.timestamps // 30_000 % 97
            assert (which == which[0]).all()
            assert dict(one.labels).get("__name__", f"m{int(which[0])}") == f"m{int(which[0])}"
        assert store.append(
            Tick(store.target("node"), clock.at, store.resolve(1, [labels("new")]), np.ones(1))
        ).accepted
        assert len(store.select(named("new"), *EVER)) == 1
        store.maintain()


def test_a_damaged_bundle_is_skipped_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    with Store(tmp_path, StoreOptions(cache_bytes=0), clock) as store:
        fill(store, clock, 5)
        store.seal()
        total = sum(len(times) for times in contents_of(store).values())
        db = store.write_side().db
        bundle, data = db.execute("SELECT id, data FROM bundle ORDER BY id LIMIT 1").fetchone()
        broken = bytearray(data)
        broken[-10] ^= 4
        db.execute("UPDATE bundle SET data = ? WHERE id = ?", (bytes(broken), bundle))
        left = sum(len(times) for times in contents_of(store).values())
        assert 0 < left < total
        assert store.stats().damaged_chunks == 1
        contents_of(store)
        assert caplog.text.count("cannot be read") == 1
        problems = store.check().problems
        assert any("cannot be read" in problem for problem in problems)
        before = store.stats().blocks
        clock.at += 3 * 24 * 3_600_000
        store.maintain()
        assert store.stats().blocks == before, "a day with a damaged chunk must not be merged"


def test_a_file_found_damaged_by_a_write_is_rebuilt_at_the_next_start(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        before = contents_of(store)
        store.own_stats.unwritable = "the free list is wrong"
    with Store(tmp_path, clock=clock) as store:
        assert contents_of(store) == before
        assert "the free list is wrong" in (store.stats().last_error or "")
    assert len(list(tmp_path.glob("*.damaged-*"))) >= 1
    with Store(tmp_path, clock=clock) as store:
        assert store.stats().last_error is None


def test_an_unusable_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path / "file" / "data")
