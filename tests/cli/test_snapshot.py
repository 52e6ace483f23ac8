"""`gpuscope snapshot`: where its numbers come from, and what it does when there are none."""

from __future__ import annotations

import json

import pytest

from gpuscope.cli import main
from gpuscope.cli.snapshot import to_json
from tests.metrics.sessions_scene import first_node
from tests.terminal.fake_server import Answer, fake_server
from tests.terminal.scene import fleet, one_node


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_json_has_owners_and_omits_absent_values() -> None:
    told = to_json(first_node())
    first = told["processes"][0]
    assert first["owner"]["pod"] == "mig-0"
    assert "sm_ratio" not in first
    assert "allocations" not in told["ownership"]


def test_a_server_s_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server({"/api/live": Answer(fleet(3))}) as server:
        assert main(["snapshot", "--server", server.url, "--node", "gpu-001", "--sort", "util"]) == 0
        shown = capsys.readouterr().out
        assert "gpu-001  8 GPUs" in shown
        assert "gpu-002" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert main(["snapshot", "--server", server.url, "--node", "nope"]) == 2
        assert "has no node 'nope'" in capsys.readouterr().err
        assert main(["snapshot", "--server", server.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {**fleet(3), "slurm": []}


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        (Answer({"error": "no"}, 401), 1, "needs a login: give an API token in GPUSCOPE_TOKEN"),
        (Answer({"error": "not found"}, 404), 1, "is it a gpuscope server?"),
        (Answer({"error": "the engine is away\x1b[2J"}, 503), 1, "answers 503: the engine is away"),
        (Answer(b"<html>"), 1, "does not answer with JSON"),
        (Answer({"status": "success"}), 1, "is it a gpuscope server?"),
        (Answer([1]), 1, "is it a gpuscope server?"),
    ],
)
def test_what_a_server_refuses(
    answer: Answer, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server({"/api/live": answer}) as server:
        assert main(["snapshot", "--server", server.url]) == code
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert "\x1b" not in error


def test_nothing_listens_there(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server({}) as server:
        pass
    assert main(["snapshot", "--server", server.url]) == 4
    assert "cannot reach" in capsys.readouterr().err
    assert main(["snapshot", "--server", "ftp://x"]) == 2


def test_token_and_password_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server({"/api/live": Answer(one_node())}) as server:
        monkeypatch.setenv("GPUSCOPE_TOKEN", "secret")
        assert main(["snapshot", "--server", server.url]) == 0
        monkeypatch.delenv("GPUSCOPE_TOKEN")
        assert main(["snapshot", "--server", server.url.replace("//", "//alice:pass@")]) == 0
        sent = [headers.get("authorization") for _, headers in server.requests]
    assert sent == ["Bearer secret", "Basic YWxpY2U6cGFzcw=="]
