"""The data folder: permissions, size on disk, and a check that includes unsealed samples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuscope.history.store import Store, StoreOptions
from gpuscope.history.store.folder import folder_bytes
from gpuscope.history.store.schema import FILE_NAME
from tests.store.support import HandClock, contents_of, fill


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def generous_umask() -> None:
    os.umask(0o022)


def test_files_are_private(tmp_path: Path) -> None:
    folder, clock = tmp_path / "new" / "data", HandClock()
    with Store(folder, clock=clock) as store:
        fill(store, clock, 1)
        copy = store.backup(tmp_path / "copy")
        assert set(modes(folder).values()) == {0o600}
        assert {f"{FILE_NAME}-wal", "lock"} <= modes(folder).keys()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert copy.stat().st_mode & 0o777 == 0o600
        assert copy.parent.stat().st_mode & 0o777 == 0o700


def test_permissions_of_older_versions_are_corrected(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", HandClock()
    with Store(folder, clock=clock) as store:
        fill(store, clock, 1)
    (folder / f"{FILE_NAME}.damaged-1").write_text("x")
    (folder / "other").write_text("x")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Store(folder, clock=clock):
        assert folder.stat().st_mode & 0o777 == 0o700
        found = modes(folder)
        assert found.pop("other") == 0o644
        assert set(found.values()) == {0o600}


def test_a_folder_with_other_files_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("mine")
    tmp_path.chmod(0o755)
    with Store(tmp_path, clock=HandClock()):
        assert tmp_path.stat().st_mode & 0o777 == 0o755
        assert modes(tmp_path)[FILE_NAME] == 0o600


def test_damaged_files_are_deleted_before_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    with Store(tmp_path, StoreOptions(retention_bytes=1 << 20), clock) as store:
        fill(store, clock, 1)
        store.seal()
        before = contents_of(store)
        for n in range(3):
            (tmp_path / f"{FILE_NAME}.damaged-{n}").write_bytes(bytes(400_000))
        assert folder_bytes(tmp_path) > 1 << 20
        store.maintain()
        assert folder_bytes(tmp_path) <= 1 << 20
        assert contents_of(store) == before
    assert [path.name[-1] for path in tmp_path.glob("*.damaged-*")] == ["2"]
    assert "retention_bytes" in caplog.text


def test_check_reads_unsealed_samples(tmp_path: Path) -> None:
    clock = HandClock()
    with Store(tmp_path, clock=clock) as store:
        fill(store, clock, 1)
        assert (store.check().samples, store.check().head_samples) == (0, 180)
        db = store.write_side().db
        db.execute("DELETE FROM layout")
    with Store(tmp_path, clock=clock, read_only=True) as store:
        report = store.check()
        assert report.head_samples == 0
        assert report.problems == ["60 ticks cannot be read: their series are unknown"]
