from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.model.exposition.text import TextfileWriter


def test_the_file_is_replaced_as_a_whole_and_readable_by_all(tmp_path: Path) -> None:
    target = tmp_path / "gpu.prom"
    writer = TextfileWriter(target)
    before = os.umask(0o077)
    try:
        writer.write(b"one\n")
        first = target.stat().st_ino
        writer.write(b"two\n")
    finally:
        os.umask(before)
    assert target.read_bytes() == b"two\n"
    assert target.stat().st_ino != first, "written in place: a reader could see half of it"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.prom"]


def test_the_temporary_file_is_never_taken_for_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real_fsync = os.fsync

    def spy(handle: int) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        real_fsync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    TextfileWriter(tmp_path / "gpu.prom").write(b"x\n")
    assert seen
    assert not [name for name in seen if name.endswith(".prom") and name != "gpu.prom"]


def test_on_an_error_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TextfileWriter(tmp_path / "gpu.prom")
    writer.write(b"old\n")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        writer.write(b"new\n")
    assert (tmp_path / "gpu.prom").read_bytes() == b"old\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_clean_stop_removes_the_file(tmp_path: Path) -> None:
    writer = TextfileWriter(tmp_path / "gpu.prom")
    writer.write(b"x\n")
    writer.remove()
    writer.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        TextfileWriter(tmp_path / "no" / "gpu.prom")


def test_a_file_has_one_writer_at_a_time(tmp_path: Path) -> None:
    target = tmp_path / "gpu.prom"
    first, second, other = TextfileWriter(target), TextfileWriter(target), TextfileWriter(tmp_path / "b.prom")
    first.claim()
    other.claim()
    with pytest.raises(UsageError, match="another gpuscope writes this file"):
        second.claim()
    first.release()
    second.claim()
    second.release()
    other.release()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_writer_does_not_count(tmp_path: Path) -> None:
    (tmp_path / ".gpu.prom.lock").touch()
    writer = TextfileWriter(tmp_path / "gpu.prom")
    writer.claim()
    writer.release()
    assert list(tmp_path.iterdir()) == []
