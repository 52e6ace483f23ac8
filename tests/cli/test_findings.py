"""`gpuscope findings` over a server that answers as ours does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.cli import main
from tests.goldens import GOLDEN, check_golden
from tests.local_server import QuietHandler, serving_http

FINDINGS = {"findings": json.loads((GOLDEN / "api/live.json").read_text())["findings"]}


@contextmanager
def answering(answer: object, status: int = 200) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.answer(
                json.dumps(answer).encode(),
                status=status if self.path.partition("?")[0] == "/api/findings" else 404,
            )

    with serving_http(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def test_findings_are_printed_and_give_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FINDINGS) as url:
        assert main(["findings", "--server", url]) == 1
    printed = capsys.readouterr().out
    assert "critical  n1  GPU 2 does not answer after XID 79\n" in printed, "since when is not known"
    assert "→ drain the node and power-cycle it" in printed
    assert "job 17 (alice)" in printed


def test_json_is_the_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FINDINGS) as url:
        assert main(["findings", "--json", "--server", url]) == 1
    assert json.loads(capsys.readouterr().out) == FINDINGS


def test_nothing_wrong_gives_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({"findings": []}) as url:
        assert main(["findings", "--server", url]) == 0
    assert capsys.readouterr().out == "no findings\n"


def test_what_is_not_known_is_said_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """No finding of such a kind says nothing."""
    not_known = [{"kind": f"kind{number}", "reason": "connection\x1b[2J refused"} for number in range(10)]
    with answering({"findings": [], "not_known": not_known}) as url:
        assert main(["findings", "--server", url]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("not known now: kind0, kind1,")
    assert "kind7 and 2 more: connection" in printed
    assert "\x1b" not in printed
    assert "no findings" not in printed


def test_escape_codes_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = {"findings": [{"severity": "\x1b[31m", "node": "\x1b]0;x\x07", "why": "a\nb\x1b[2J", "since": "x"}]}
    with answering(evil) as url:
        main(["findings", "--server", url])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("answer", [[], {"findings": 3}, {"findings": [3]}, {"status": "success"}])
def test_another_servers_answer_is_one_sentence(capsys: pytest.CaptureFixture[str], answer: object) -> None:
    with answering(answer) as url:
        assert main(["findings", "--server", url]) == 1
    assert "is it a gpuscope server?" in capsys.readouterr().err


def test_a_refusal_is_explained_and_an_absent_server_is_exit_code_4(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering({"error": "log in"}, 401) as url:
        assert main(["findings", "--server", url]) == 1
    assert "log in" in capsys.readouterr().err
    assert main(["findings", "--server", "http://127.0.0.1:1"]) == 4
    assert main(["findings", "--server", "nowhere"]) == 2


OVER_TIME = json.loads((GOLDEN / "api/findings_over_time.json").read_text())


def test_findings_over_time_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(OVER_TIME) as url:
        assert main(["findings", "--since", "24h", "--rate", "H100=2.5", "--server", url]) == 1
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    check_golden(Path("terminal/findings_over_time.txt"), printed.encode())


def test_the_evidence_is_printed_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(OVER_TIME) as url:
        main(["findings", "--since", "24h", "--evidence", "--server", url])
    printed = capsys.readouterr().out
    assert OVER_TIME["findings"][0]["evidence"] in printed
    assert f"{url}/#/explore?q=" in printed


def test_a_hostile_answer_over_time_reaches_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = {"why": "\x1b[2J", "nodes": ["\x1b]0;x\x07"], "jobs": [{}], "hours": "x", "times": "y", "link": 3}
    answer = {
        "findings": [evil],
        "folded": [3, {"kind": "\x1b"}],
        "coverage": 7,
        "rate": "\x1b[1m",
        "cost": 1.0,
    }
    with answering(answer) as url:
        assert main(["findings", "--since", "1h", "--evidence", "--server", url]) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--until=1d", "--rate=2", "--all", "--evidence"])
def test_what_only_a_range_has_needs_one(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert main(["findings", flag, "--server", "http://127.0.0.1:1"]) == 2
    assert "needs --since: for example --since 7d" in capsys.readouterr().err
