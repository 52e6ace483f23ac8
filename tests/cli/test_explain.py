"""`gpuscope explain`: each row of the tables, and the occurrences that a server knows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuscope.cli import main
from gpuscope.health.states import STATES
from gpuscope.health.throttles import THROTTLES
from gpuscope.health.xids import XIDS
from gpuscope.metrics.families.native.table import NATIVE_METRICS

NOBODY = ["--server", "http://127.0.0.1:1"]


@contextmanager
def server_with(rows: list[dict[str, object]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            document = {"status": "success", "data": {"resultType": "vector", "result": rows}}
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_xid_has_its_meaning_and_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "xid", "79", *NOBODY]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("XID 79 FALLEN_OFF_THE_BUS\n")
    for text in (XIDS[79].meaning, XIDS[79].next_step, "no, it is suspect", "no server asked"):
        assert text in printed


def test_the_gpus_on_which_it_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"metric": {"instance": "n1\x1b[31m", "gpu": "3"}, "value": [1.0, "4"]}
    with server_with([row]) as url:
        assert main(["explain", "xid", "79", "--server", url]) == 0
    printed = capsys.readouterr().out
    assert "GPU 3: 4 times" in printed
    assert "\x1b[31m" not in printed


def test_never_seen_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with server_with([]) as url:
        assert main(["explain", "throttle", "hw_slowdown", "--server", url]) == 0
    assert "not in the last 30d" in capsys.readouterr().out


def test_json_has_the_occurrences(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"metric": {"instance": "n1", "gpu": "3"}, "value": [1.0, "4"]}
    with server_with([row]) as url:
        assert main(["explain", "xid", "13", "--server", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seen"] == [{"node": "n1", "gpu": "3", "value": 4.0}]
    assert document["healthy GPU"] == "yes: one program is hit"


def test_every_row_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, count in (
        ("xid", len(XIDS)),
        ("throttle", len(THROTTLES)),
        ("state", len(STATES)),
        ("metric", len(NATIVE_METRICS)),
    ):
        assert main(["explain", kind]) == 0
        assert len(capsys.readouterr().out.splitlines()) == count


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["xid", "banana"], "'banana' is not an XID: XIDs are numbers"),
        (["throttle", "hw_slowdwn"], "did you mean hw_slowdown?"),
        (["state", "\x1b[1m"], "is not a state"),
        (["metric", "gpuscope_gpu_power"], "is not a metric of the native family"),
        (["nonsense", "x"], "invalid choice"),
    ],
)
def test_an_unknown_name_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["explain", *arguments, *NOBODY]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "\x1b" not in printed
