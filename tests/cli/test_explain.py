"""`gpuscope explain`: each row of the tables, and the occurrences that a server knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qs

import pytest

from gpuscope.agent.families.native.table import NATIVE_METRICS
from gpuscope.agent.owners.gpu_work import MEANING_OF_WORK
from gpuscope.cli import main
from gpuscope.judge.checks.states import STATES
from gpuscope.model.vendor import throttle_reasons
from gpuscope.vendors.nvidia.xids import XIDS
from tests.local_server import QuietHandler, serving_http
from tests.reports.histories import STEP_MS, History

NOBODY = ["--server", "http://127.0.0.1:1"]


@contextmanager
def server_with(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.read_body()
            document = {"status": "success", "data": {"resultType": "vector", "result": rows}}
            self.answer(json.dumps(document).encode())

    with serving_http(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def test_an_xid_has_its_meaning_and_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "xid", "79", *NOBODY]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("XID 79 FALLEN_OFF_THE_BUS\n")
    for text in (XIDS["79"].meaning, XIDS["79"].next_step, "no, it is suspect", "no server was queried"):
        assert text in printed


@pytest.mark.parametrize("state", ["held", "busy"])
def test_a_state_of_use_says_what_work_is(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "state", state, *NOBODY]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert MEANING_OF_WORK in said
    assert "1 % of the time" in said


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
    assert document["seen"] == [{"node": "n1", "gpu": "3", "model": "", "value": 4.0}]
    assert document["healthy GPU"] == "yes: one program is hit"


@contextmanager
def server_over(history: History) -> Iterator[str]:
    """Evaluates what it is asked, at the end of the history."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            query = parse_qs(self.read_body().decode())["query"][0]
            vector = asyncio.run(history.engine().instant(query, history.end_ms - STEP_MS))
            found = zip(vector.labels, vector.values.tolist(), strict=True)
            rows = [{"metric": dict(labels), "value": [0, str(value)]} for labels, value in found]
            document = {"status": "success", "data": {"resultType": "vector", "result": rows}}
            self.answer(json.dumps(document).encode())

    with serving_http(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def seen_history() -> History:
    history = History(minutes=120)
    gpu = history.gpu(0)
    other = history.gpu(1, model="NVIDIA L4")
    history.add("gpuscope_gpu_up", 0.0, 60, **other)
    history.add("gpuscope_gpu_xid_errors_total", 3.0, **gpu, xid="31")
    reason = "hw_thermal_slowdown"
    history.add("gpuscope_gpu_throttled_seconds_total", 5400.0, **other, reason=reason)
    history.add("gpuscope_gpu_held_idle_seconds_total", 7200.0, **gpu)
    history.add("gpuscope_agent_snapshot_age_seconds", 600.0, 60, instance="n1:9400")
    history.add("gpuscope_gpu_power_watts", 100.0, **gpu)
    history.add("gpuscope_gpus_seen", 2.0, instance="n1:9400")
    return history


@pytest.mark.parametrize(
    ("what", "name", "line"),
    [
        ("xid", "31", "n1:9400 GPU 0, NVIDIA H100: 3 times"),
        ("xid", "79", "not in the last 30d"),
        ("throttle", "hw_thermal_slowdown", "n1:9400 GPU 1, NVIDIA L4: 1h 30m"),
        ("state", "throttled", "n1:9400 GPU 1, NVIDIA L4: 1h 30m"),
        ("state", "held", "n1:9400 GPU 0, NVIDIA H100: 2h"),
        ("state", "lost", "n1:9400 GPU 1, NVIDIA L4: 1h"),
        ("state", "stale", "n1:9400: 1h"),
        ("state", "sick", "no GPU was in it"),
        ("state", "gone", "no GPU was in it"),
        ("metric", "gpuscope_gpu_power_watts", "NVIDIA H100: 1 have it now"),
        ("metric", "gpuscope_gpus_seen", "n1:9400: 1 have it now"),
        ("metric", "gpuscope_gpu_fan_rpm", "no series has this name now"),
    ],
)
def test_how_often_and_on_which_cards(
    capsys: pytest.CaptureFixture[str], what: str, name: str, line: str
) -> None:
    with server_over(seen_history()) as url:
        assert main(["explain", what, name, "--server", url]) == 0
    assert line in capsys.readouterr().out


def test_every_row_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, count in (
        ("xid", len(XIDS)),
        ("throttle", len(throttle_reasons())),
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
        (["nonsense", "x"], "is not one of xid, throttle, state, alert, metric"),
    ],
)
def test_an_unknown_name_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["explain", *arguments, *NOBODY]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "\x1b" not in printed


def test_an_alert_has_its_meaning_next_step_and_expression(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "alert", "HeldIdle"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "has not used it for 15 minutes" in out
    assert "fires after 45m" in out
    assert "gpuscope_process_idle_seconds" in out
    assert main(["explain", "alert", "SourceDown"]) == 0
    assert "source kubelet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("79", "XID 79"), ("held", "state held"), ("HeldIdle", "alert HeldIdle"),
        ("thermal", "throttle reason thermal"), ("hot", ""), ("999", ""),
    ],
)  # fmt: skip
def test_a_name_alone_is_enough(name: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["explain", name, *NOBODY])
    printed = capsys.readouterr()
    assert code == (0 if title else 2)
    assert printed.out.startswith(title)
    assert title or "neither a kind (xid, " in printed.err
