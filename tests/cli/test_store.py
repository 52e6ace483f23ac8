from __future__ import annotations

import json
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gpuscope.cli import main
from gpuscope.history.store import Store, Tick
from gpuscope.model.exposition.parser import parse_once

START = int(time.time()) - 1000  # recent: a store refuses what its retention would drop at once


@pytest.fixture
def history(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with Store(folder) as store:
        target = store.target("t")
        ids = store.resolve(target, [(("__name__", "power"), ("gpu", str(n))) for n in range(3)])
        for second in range(100):
            store.append(Tick(target, (START + second) * 1000, ids, np.arange(3.0) + second))
    return folder


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["store", *argv])
    return code, capsys.readouterr().out


def test_stat_and_check(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "stat", "--data", str(history), "--json")
    stats = json.loads(text)
    assert code == 0
    assert stats["series"] == 3
    assert stats["head_samples"] + stats["block_samples"] == 300
    first = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(START))
    assert first in said(capsys, "stat", "--data", str(history))[1]
    code, text = said(capsys, "check", "--data", str(history))
    assert code == 0
    assert "no damage found" in text


def test_export_chooses_series_and_times(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(
        capsys, "export", "--data", str(history), "--match", 'power{gpu="1"}', "--start", str(START + 98)
    )
    assert code == 0
    read = [(dict(labels), at, value) for labels, at, value in parse_once(text, openmetrics=True)]
    series = {"__name__": "power", "gpu": "1"}
    assert read == [(series, (START + 98) * 1000, 99.0), (series, (START + 99) * 1000, 100.0)]


def test_backup_while_another_process_writes(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(history):
        code, text = said(capsys, "backup", "--data", str(history), str(tmp_path / "copy"))
    assert code == 0
    assert Path(text.strip()).is_file()
    assert json.loads(said(capsys, "stat", "--data", str(tmp_path / "copy"), "--json")[1])["series"] == 3


def test_a_backup_has_users_silences_and_alert_states_too(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that a server can start with; its lock, half-written and other files stay."""
    for name in ("users.json", "rule_state.json", "lock", ".users.json.x.tmp", "thesis.txt"):
        (history / name).write_text(name)
        (history / name).chmod(0o600)
    with closing(sqlite3.connect(history / "notifications.sqlite")) as running:
        running.execute("pragma journal_mode = wal")  # a plain copy of the file would miss the row
        running.execute("create table silences (id text)")
        running.execute("insert into silences values ('kept')")
        running.commit()
        code, _ = said(capsys, "backup", "--data", str(history), str(tmp_path / "copy"))
    assert code == 0
    with closing(sqlite3.connect(tmp_path / "copy/notifications.sqlite")) as copy:
        assert copy.execute("select id from silences").fetchall() == [("kept",)]
    copied = {path.name for path in (tmp_path / "copy").iterdir()}
    assert copied - {"kind"} == {"store.sqlite", "notifications.sqlite", "users.json", "rule_state.json"}
    assert (tmp_path / "copy/users.json").read_text() == "users.json"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "copy").iterdir()} == {0o600}


def test_a_folder_of_another_user_is_one_sentence(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the folder of a systemd unit is; root, who runs tests, may read everything."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert main(["store", "stat", "--data", str(history)]) == 2
    assert f"no permission to read {history}; run the command with sudo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["stat", "--data", "/nonexistent"], "there is no history"),
        (["backup"], "a destination folder is required"),
        (["export", "--match", "sum("], "match"),
        (["delete"], "--match is required"),
        (["delete", "--match", "power"], "pass --yes to confirm"),
        (["delete", "--match", "power", "--start", "soon", "--yes"], "soon"),
    ],
)
def test_mistakes(history: Path, capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str) -> None:
    argv = argv if "--data" in argv else [*argv, "--data", str(history)]
    assert main(["store", *argv]) == 2
    assert complaint in capsys.readouterr().err


def test_delete_removes_only_matching_series(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["delete", "--data", str(history), "--match", 'power{gpu="1"}', "--yes"]
    code, text = said(capsys, *argv, "--start", str(START + 10), "--end", str(START + 19))
    assert (code, text) == (0, "deleted samples of 1 series\n")
    kept = said(capsys, "export", "--data", str(history), "--match", 'power{gpu="1"}')[1]
    assert len(list(parse_once(kept, openmetrics=True))) == 90
    assert said(capsys, *argv)[0] == 0
    assert json.loads(said(capsys, "stat", "--data", str(history), "--json")[1])["series"] == 2
    assert said(capsys, *argv) == (0, "no matching series; nothing was deleted\n")


@pytest.mark.parametrize(("answer", "left"), [("y", 2), ("YES", 2), ("", 3), ("n", 3)])
def test_delete_asks_for_confirmation(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return answer

    monkeypatch.setattr("builtins.input", ask)
    assert main(["store", "delete", "--data", str(history), "--match", 'power{gpu="1"}']) == (left == 3)
    assert asked == ['Delete 1 series of power{gpu="1"}, all samples? [y/N] ']
    capsys.readouterr()
    assert json.loads(said(capsys, "stat", "--data", str(history), "--json")[1])["series"] == left


def test_delete_refuses_a_folder_in_use(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(history):
        assert main(["store", "delete", "--data", str(history), "--match", "power", "--yes"]) == 2
    assert "/api/v1/admin/tsdb/delete_series" in capsys.readouterr().err
