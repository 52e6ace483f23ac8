"""Text from a hostile server, target or store cannot inject anything into a terminal, spreadsheet or log."""

from __future__ import annotations

import csv
import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.cli import main
from gpuscope.cli.output import LineFormatter, csv_cell, escape_controls
from gpuscope.history.store import Store, Tick
from tests.local_server import QuietHandler, serving_http

CLEAR = "\x1b[2J\x1b]0;owned\x07"
FORMULA = '=HYPERLINK("http://evil.example","open")'


@contextmanager
def server_that_answers(document: dict[str, Any], status: int = 200) -> Iterator[str]:
    class Answer(QuietHandler):
        def do_POST(self) -> None:
            self.read_body()
            self.answer(json.dumps(document).encode(), status=status)

    with serving_http(Answer) as port:
        yield f"http://127.0.0.1:{port}"


def vector(*pairs: tuple[dict[str, str], str]) -> dict[str, Any]:
    result = [{"metric": metric, "value": [1, value]} for metric, value in pairs]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


HOSTILE = {
    "vector": vector(({f"a{CLEAR}": f"x{CLEAR}"}, f"1{CLEAR}"), ({f"b{CLEAR}": FORMULA}, "2")),
    "one": vector(({f"a{CLEAR}": "x"}, f"1{CLEAR}")),
    "string": {"status": "success", "data": {"resultType": "string", "result": [1, CLEAR]}},
    "matrix": {
        "status": "success",
        "data": {"resultType": "matrix", "result": [{"metric": {CLEAR: CLEAR}, "values": [[1, CLEAR]]}]},
    },
    "warning": {**vector(({"a": "x"}, "1")), "warnings": [CLEAR], "infos": [CLEAR]},
}


@pytest.mark.parametrize("form", [[], ["--csv"], ["--json"]], ids=["table", "csv", "json"])
@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_no_escape_reaches_the_terminal(
    answer: dict[str, Any], form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with server_that_answers(answer) as url:
        assert main(["query", "up", "--server", url, *form]) == 0
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & {"\x1b", "\x07"}
    assert shown.out


def test_no_escape_in_an_error_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    with server_that_answers({"status": "error", "error": f"bad{CLEAR}\ngpuscope: all is well"}, 422) as url:
        assert main(["query", "up", "--server", url]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "\x1b" not in shown


def test_no_formula_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    answer = vector(({"=cmd": FORMULA, "b": "-1"}, "-5"), ({"b": "@SUM(1)", "c": "\t=1"}, "+Inf"))
    with server_that_answers(answer) as url:
        main(["query", "up", "--server", url, "--csv"])
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows == [
        ["time", "value", "'=cmd", "b", "c"],
        ["1", "-5", f"'{FORMULA}", "-1", ""],
        ["1", "+Inf", "", "'@SUM(1)", "\\t=1"],
    ]


@pytest.mark.parametrize(
    ("text", "cell"), [("a=1", "a=1"), ("-1e5", "-1e5"), ("-1-1", "'-1-1"), ("+x", "'+x"), ("\r=1", "\\r=1")]
)
def test_csv_cells(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


def test_export_is_exact_in_a_file_and_escaped_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        target = store.target("t")
        ids = store.resolve(target, [(("__name__", "power"), ("job", CLEAR))])
        store.append(Tick(target, int(time.time() * 1000), ids, np.ones(1)))
    arguments = ["store", "export", "--data", str(tmp_path)]
    assert main(arguments) == 0
    assert CLEAR in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"\x1b[2J" in shown
    assert shown.endswith("# EOF\n")


def test_a_log_record_is_one_line_and_a_traceback_keeps_its_lines() -> None:
    formatter = LineFormatter("gpuscope: %(levelname)s %(message)s")
    record = logging.LogRecord(
        "x", logging.WARNING, "", 0, "from %s", (f"eve\ngpuscope: INFO fine{CLEAR}",), None
    )
    line = formatter.format(record)
    assert line == r"gpuscope: WARNING from eve\ngpuscope: INFO fine\x1b[2J\x1b]0;owned\x07"
    try:
        raise ValueError(CLEAR)
    except ValueError as error:
        failure = (type(error), error, error.__traceback__)
    told = formatter.format(logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), failure))
    assert told.count("\n") >= 3
    assert "\x1b" not in told


def test_escaping_keeps_printable_text() -> None:
    assert escape_controls("Größe 日本 é\\") == "Größe 日本 é\\"
    assert escape_controls("\u202e\x9b\x7f\n", keep="\n") == "\\u202e\\x9b\\x7f\n"
