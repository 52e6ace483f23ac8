"""Commands over a server that lies: hostile text in every place, and values of the wrong kind in every place.

Names of processes, pods and jobs come from users. No control or direction character of theirs reaches the
terminal, and an answer of another form is one sentence, never a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

import pytest

from gpuscope.cli import main
from gpuscope.cli.terminal.spans import is_control
from tests.terminal.fake_server import Answer, FakeServer, fake_server
from tests.terminal.scene import NOW, one_node

EVIL: Final = "\x1b[2J\x1b]0;owned\x07\u202eevil\u2066\r\n\x9b31m\u2028"
WRONG: Final[tuple[Any, ...]] = (None, True, -1, 1e308, 10**400, [], {}, [None], "x", EVIL)

ALERT = {
    "labels": {"alertname": "Hot", "severity": "critical", "node": "n1"},
    "annotations": {"summary": "hot"},
    "startsAt": "2026-11-16T10:48:00Z",
    "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
    "fingerprint": "ab",
}
CHANNEL = {"channel": "ops", "up": False, "last_error": "refused", "failing_since": NOW}
SILENCE = {
    "id": "13db969f-0ea0-40b8-b51d-b731c5010945",
    "status": {"state": "active"},
    "matchers": [{"name": "node", "value": "n3", "isRegex": False, "isEqual": True}],
    "endsAt": "2027-11-16T10:48:00Z",
    "createdBy": "ann",
    "comment": "new fan",
}
FINDING = {
    "severity": "warning", "node": "n1", "nodes": ["n1", "n2"], "gpus": ["0"], "why": "nobody uses it",
    "next": "ask ann", "since": NOW - 60, "until": None, "hours": 2.5, "times": 2, "jobs": ["7"],
    "cost_gpu_hours": 2.5, "evidence": "up == 0", "link": "./#/x", "kind": "idle",
}  # fmt: skip
FINDINGS = {
    "findings": [FINDING], "since": NOW - 3600, "until": NOW, "cost_gpu_hours": 2.5,
    "folded": [{"kind": "idle", "count": 3, "cost_gpu_hours": 0.1}],
    "coverage": {"gpus": 8, "known_gpu_hours": 8.0, "missing": ["an hour"]},
}  # fmt: skip
NO_SERIES = {"status": "success", "data": {"resultType": "vector", "result": []}}
ANSWERS: Final[dict[str, Any]] = {
    "/api/live": one_node(),
    "/api/v1/query": NO_SERIES,
    "/api/v2/alerts": [ALERT],
    "/api/v2/silences": [SILENCE],
    "/api/notify": {"channels": [CHANNEL], "reload_error": "line 3"},
    "/api/findings": FINDINGS,
}
COMMANDS: Final = {
    "alerts": ("/api/v2/alerts", ("alerts", "--all")),
    "channels": ("/api/notify", ("alerts",)),
    "silences": ("/api/v2/silences", ("silence", "list", "--all")),
    "findings": ("/api/findings", ("findings",)),
    "past findings": ("/api/findings", ("findings", "--since", "1h", "--evidence")),
    "free": ("/api/live", ("free",)),
    "snapshot": ("/api/live", ("snapshot",)),
    "top": ("/api/live", ("top",)),
}


def with_hostile_text(document: Any, name: str = "") -> Any:
    """The document with hostile text behind every text but states: only a GPU of state idle is free."""
    if isinstance(document, dict):
        return {key: with_hostile_text(value, key) for key, value in document.items()}
    if isinstance(document, list):
        return [with_hostile_text(value, name) for value in document]
    return document + EVIL if isinstance(document, str) and name != "state" else document


def one_replaced(document: Any, values: Iterator[Any]) -> Iterator[Any]:
    """The document with one of its parts, lists and objects included, missing or replaced by the next value."""
    yield next(values)
    if isinstance(document, dict):
        for name, part in document.items():
            yield {key: other for key, other in document.items() if key != name}
            yield from ({**document, name: changed} for changed in one_replaced(part, values))
    elif isinstance(document, list) and document:  # the others are of the same kind
        yield from ([changed] for changed in one_replaced(document[0], values))


def run(server: FakeServer, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    code = main([*command, "--server", server.url])
    shown = capsys.readouterr()
    assert code in (0, 1), (code, shown.err)
    unsafe = {c for c in shown.out + shown.err if is_control(c)} - {"\n"}
    assert not unsafe, unsafe
    return shown.out + shown.err


@pytest.mark.parametrize("name", COMMANDS)
def test_hostile_text_in_every_place(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, command = COMMANDS[name]
    hostile = with_hostile_text(ANSWERS[path])
    with fake_server({one: Answer(ANSWERS[one]) for one in ANSWERS} | {path: Answer(hostile)}) as server:
        shown = run(server, command, capsys)
    assert "evil" in shown, "the text itself is shown"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("free", "top")])  # as snapshot
def test_wrong_values_in_every_place(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, command = COMMANDS[name]
    with fake_server({one: Answer(ANSWERS[one]) for one in ANSWERS}) as server:
        for document in one_replaced(ANSWERS[path], cycle(WRONG)):
            server.answers[path] = Answer(document)
            run(server, command, capsys)


def test_an_error_while_free_waits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscope.cli.free.FLEET_SECONDS", 0.01)
    busy = {**one_node(), "gpus": [{**gpu, "state": "busy"} for gpu in one_node()["gpus"]]}
    with fake_server({"/api/live": Answer(busy)}) as server:

        class Failing(dict[str, Answer]):
            """The first answer is the fleet, the others are an error with escape codes."""

            def get(self, path: str, default: Any = None) -> Any:
                if path != "/api/live":
                    return super().get(path)
                return self.pop(path, None) or Answer({"error": f"away{EVIL}"}, 503)

        server.answers = Failing({**server.answers, "/api/v1/query": Answer(NO_SERIES)})
        shown = run(server, ("free", "--wait", "--timeout", "300ms"), capsys)
    assert "still waiting" in shown
    assert "evil" in shown
