from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from gpuscope.errors import UsageError
from gpuscope.server.login.private_file import Document, PrivateFile
from tests.server.login.support import CHEAP_ROUNDS


def whole(document: Document) -> Document:
    if not isinstance(document.get("names", []), list):
        raise ValueError("names is no list")
    return {"names": document.get("names", [])}


def test_it_is_the_owners_alone_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "new" / "x.json", whole)
    file.open()
    file.update(lambda document: document["names"].append("ann"))
    assert file.read() == {"names": ["ann"]}
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["x.json", "x.json.lock"]


def test_a_link_in_its_place_leads_nowhere(tmp_path: Path) -> None:
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
def test_what_root_writes_belongs_to_the_folders_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    file = PrivateFile(tmp_path / "x.json", whole)
    file.update(lambda document: None)
    for path in tmp_path.iterdir():
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


def test_another_processs_change_is_seen_and_kept(tmp_path: Path) -> None:
    here, there = PrivateFile(tmp_path / "x.json", whole), PrivateFile(tmp_path / "x.json", whole)
    here.update(lambda document: document["names"].append("ann"))
    there.update(lambda document: document["names"].append("bob"))
    assert here.read() == there.read() == {"names": ["ann", "bob"]}


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
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
def test_a_damaged_file_is_named_at_the_start_and_outlived_later(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = PrivateFile(tmp_path / "x.json", whole)
    file.update(lambda document: document["names"].append("ann"))
    file.read()
    file.path.write_bytes(damage)
    assert file.read() == file.read() == {"names": ["ann"]}
    assert len(caplog.records) == 1, "said once an episode"
    with pytest.raises(UsageError, match=r"x\.json: .*mend it or move it away"):
        PrivateFile(file.path, whole).open()
    with pytest.raises(ValueError):
        file.update(lambda document: None)
    assert file.path.read_bytes() == damage, "what somebody may still mend is not overwritten"


def test_a_file_that_others_can_read_is_closed_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    path.chmod(0o644)
    PrivateFile(path, whole).open()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "0600" in caplog.text


def _add_users(folder: Path, prefix: str) -> None:
    from gpuscope.server.login.user_file import Users

    users = Users(folder, rounds=CHEAP_ROUNDS)
    for number in range(10):
        users.add(f"{prefix}{number}", "long enough 1")


def test_two_processes_lose_none_of_each_others_changes(tmp_path: Path) -> None:
    from gpuscope.server.login.user_file import Users

    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_users, args=(tmp_path, prefix)) for prefix in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        process.close()
    assert len(Users(tmp_path).names()) == 20
