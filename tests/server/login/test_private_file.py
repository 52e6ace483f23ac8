from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.serve.login.private_file import Document, PrivateFile
from tests.server.login.support import CHEAP_ROUNDS


def whole(document: Document) -> Document:
    if not isinstance(document.get("names", []), list):
        raise ValueError("names is no list")
    return {"names": document.get("names", [])}


def test_mode_is_0600_and_no_temporary_file_remains(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "new" / "x.json", whole)
    file.open()
    file.update(lambda document: document["names"].append("ann"))
    assert file.read() == {"names": ["ann"]}
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["x.json", "x.json.lock"]


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    file = PrivateFile(tmp_path / "x.json", whole)
    (tmp_path / "x.json.lock").symlink_to(other)
    with pytest.raises(OSError):
        file.update(lambda document: None)
    assert other.read_text() == "precious"
    (tmp_path / "x.json.lock").unlink()
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    file.path.symlink_to(empty)
    file.update(lambda document: document["names"].append("ann"))
    assert empty.read_text() == "{}"
    assert not file.path.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_written_by_root_belong_to_the_folders_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    file = PrivateFile(tmp_path / "x.json", whole)
    file.update(lambda document: None)
    for path in tmp_path.iterdir():
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


def test_changes_of_another_process_are_read_and_preserved(tmp_path: Path) -> None:
    here, there = PrivateFile(tmp_path / "x.json", whole), PrivateFile(tmp_path / "x.json", whole)
    here.update(lambda document: document["names"].append("ann"))
    there.update(lambda document: document["names"].append("bob"))
    assert here.read() == there.read() == {"names": ["ann", "bob"]}


def test_a_failing_change_leaves_the_file_unchanged(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "x.json", whole)
    file.update(lambda document: document["names"].append("ann"))

    def fail(document: Document) -> None:
        document["names"].clear()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        file.update(fail)
    assert file.read() == {"names": ["ann"]}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b'{"names": 3}', b"\xff\xfe", b"[1]" * 3])
def test_a_damaged_file_is_an_error_at_start_and_tolerated_later(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = PrivateFile(tmp_path / "x.json", whole)
    file.update(lambda document: document["names"].append("ann"))
    file.read()
    file.path.write_bytes(damage)
    assert file.read() == file.read() == {"names": ["ann"]}
    assert len(caplog.records) == 1, "said once an episode"
    with pytest.raises(UsageError, match=r"x\.json: .*repair the file or move it away"):
        PrivateFile(file.path, whole).open()
    with pytest.raises(ValueError):
        file.update(lambda document: None)
    assert file.path.read_bytes() == damage, "a damaged file is not overwritten"


def test_a_readable_file_is_restricted_to_its_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    path.chmod(0o644)
    PrivateFile(path, whole).open()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "0600" in caplog.text


def _add_users(folder: Path, prefix: str) -> None:
    from gpuscope.serve.login.user_file import UserFile

    users = UserFile(folder, rounds=CHEAP_ROUNDS)
    for number in range(10):
        users.add(f"{prefix}{number}", "long enough 1")


def test_concurrent_processes_lose_no_change(tmp_path: Path) -> None:
    from gpuscope.serve.login.user_file import UserFile

    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_users, args=(tmp_path, prefix)) for prefix in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        process.close()
    assert len(UserFile(tmp_path).names()) == 20
