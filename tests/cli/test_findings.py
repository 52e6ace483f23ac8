"""`gpuscope findings` over a server that answers as ours does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuscope.cli import main
from tests.goldens import GOLDEN

FINDINGS = {"findings": json.loads((GOLDEN / "api/live.json").read_text())["findings"]}


@contextmanager
def answering(answer: object, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/findings" else 404)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_findings_are_printed_and_give_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FINDINGS) as url:
        assert main(["findings", "--server", url]) == 1
    printed = capsys.readouterr().out
    assert "critical  n1  GPU 2 does not answer after XID 79 (" in printed
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
