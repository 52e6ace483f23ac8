"""Demo and real history never share a folder, including folders without a kind file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuscope.cli import main
from gpuscope.history.store import Store, StoreError, Tick
from gpuscope.history.store.folder import KIND_FILE, DataKindError, claim_folder
from gpuscope.model.series import Labels


def fill(folder: Path, *simulated: str) -> None:
    """Create a folder without a kind file, with one agent per value of `simulated`."""
    with Store(folder) as store:
        store.start()
        target = store.target("t")
        labels: list[Labels] = [
            (("__name__", "gpuscope_agent_info"), ("instance", f"n{number}"), ("simulated", word))
            for number, word in enumerate(simulated)
        ]
        store.append(Tick(target, 1000, store.resolve(target, labels), np.ones(len(labels))))


def claim(folder: Path, simulated: bool) -> None:
    with Store(folder) as store:
        claim_folder(store, simulated=simulated)


@pytest.mark.parametrize("simulated", [False, True])
def test_a_folder_keeps_its_kind(tmp_path: Path, simulated: bool) -> None:
    for _ in range(2):
        claim(tmp_path, simulated)
    with pytest.raises(DataKindError, match="choose another folder"):
        claim(tmp_path, not simulated)
    assert (tmp_path / KIND_FILE).read_text() == ("demo\n" if simulated else "real\n")
    assert (tmp_path / KIND_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("agents", "is_demo"), [(("true", "true"), True), (("true", "false"), False), (("false",), False)]
)
def test_the_kind_of_an_older_folder_follows_from_its_agents(
    tmp_path: Path, agents: tuple[str, ...], is_demo: bool
) -> None:
    fill(tmp_path, *agents)
    with pytest.raises(DataKindError):
        claim(tmp_path, not is_demo)
    assert not (tmp_path / KIND_FILE).exists(), "a refused claim must not change the folder"
    claim(tmp_path, is_demo)


def test_an_invalid_kind_file_is_an_error(tmp_path: Path) -> None:
    claim(tmp_path, False)
    (tmp_path / KIND_FILE).write_text("\x1b[31mboth\n")
    with pytest.raises(StoreError, match=r"write `real` or `demo`") as raised:
        claim(tmp_path, False)
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("command", [("up",), ("server",), ("up", "--demo")])
def test_commands_report_a_wrong_kind_in_one_sentence(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "history"
    claim(data, simulated="--demo" not in command)
    assert main([*command, "--data", str(data), "--listen", "127.0.0.1:0"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gpuscope: --data")]
    assert str(data) in line
    assert "choose another folder" in line
    assert main(["store", "stat", "--data", str(data)]) == 0
    assert main(["user", "list", "--data", str(data)]) == 0


def test_a_demo_uses_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    claim(tmp_path / ".local/share/gpuscope-demo", simulated=False)
    assert main(["up", "--demo", "--listen", "127.0.0.1:0"]) == 2
    assert "gpuscope-demo" in capsys.readouterr().err
    assert not (tmp_path / ".local/share/gpuscope").exists()
