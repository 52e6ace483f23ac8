"""`/api/findings?since=`: its document, its parameters, what it says of failures, its metrics."""

from __future__ import annotations

import asyncio
import threading
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.engines.query_engine import EngineFailed
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.reports.findings.finding_ledger import WINDOW_MS, FindingLedger
from gpuscope.model.exposition.text import encode_text
from gpuscope.serve.api_types import findings_json
from gpuscope.serve.api_types.findings_json import PastFindingsAnswer
from gpuscope.serve.http.messages import Request, Router
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import FleetSamples, by_node
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.sample_judge import SampleJudge
from gpuscope.serve.page_routes import page_files, page_routes
from gpuscope.serve.reports.findings_over_time import FindingsOverTime
from tests.goldens import check_golden
from tests.health.fleets import NOW, gpu, node
from tests.reports.histories import History
from tests.server.client import Client, run
from tests.server.test_api_golden import OVER_TIME, conform
from tests.waiting import PATIENCE_SECONDS


def history() -> History:
    """A day: alice holds two GPUs idle, one GPU is free since the day before, one is throttled, and n2 is down
    in the end."""
    made = History()
    for number in range(2):
        labels = made.gpu(number, processes=1.0)
        made.process(labels, str(number), idle_since=240, user="alice", slurm_job="17")
    free = made.gpu(2, model="NVIDIA L4", processes=0.0)
    made.add("gpuscope_gpu_free_for_seconds", lambda minute: 86400.0 + 60.0 * (minute + 1), **free)
    hot = made.gpu(3, processes=1.0)
    made.add("gpuscope_gpu_clock_hertz", 1e9, **hot, clock="sm")
    made.add("gpuscope_gpu_clock_max_hertz", 2e9, **hot, clock="sm")
    made.add("gpuscope_gpu_throttle_reason", 1.0, 0, 300, **hot, reason="hw_thermal_slowdown")
    made.gpu(0, instance="n2:9400", end=1200, processes=1.0)
    made.add("up", 0.0, 1200, instance="n2:9400", job="gpus")
    for number in range(6):
        labels = made.gpu(4 + number, processes=1.0)
        made.process(labels, "9", idle_since=0, end=30, user=f"user{number}")
    return made


def service(
    made: History, filled_until_ms: Callable[[], int | None] = lambda: None, **settings: Any
) -> tuple[FindingsOverTime, Router]:
    samples, judgement = [*node(), *gpu("0", up=0.0)], SampleJudge()
    judgement.add(samples, NOW)

    async def read() -> FleetSamples:
        return by_node(samples)

    live = LiveFleet(read, "test", judge=FleetJudge(judgement), clock=lambda: NOW)
    ledger = FindingLedger(made.engine(), offload=asyncio.to_thread, filled_until_ms=filled_until_ms)
    past = FindingsOverTime(
        ledger, live, clock=lambda: made.end_ms / 1000 + 60, wait_seconds=PATIENCE_SECONDS, **settings
    )
    return past, Router(page_routes(live, None, past.answer), page_files)


def ask(made: History, query: str, **settings: Any) -> dict[str, Any]:
    with Client(service(made, **settings)[1]) as client:
        answer = client.get(f"/api/findings?{query}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
    return found


def test_findings_end_where_the_past_is_complete() -> None:
    """What is filled in later is not said to be missing."""
    made = history()
    until_ms = made.end_ms - 12 * 3_600_000
    answer = ask(made, "since=24h", filled_until_ms=lambda: until_ms)
    assert answer["until"] == until_ms / 1000
    first, *rest = answer["coverage"]["missing"]
    assert first.startswith("the past is still being filled in: complete until ")
    assert not [one for one in rest if "missing" in one]
    nothing = ask(made, "since=6h", filled_until_ms=lambda: until_ms)
    assert nothing["findings"] == []
    assert len(nothing["coverage"]["missing"]) == 1


def test_the_document_is_the_golden_and_has_every_key() -> None:
    answer = ask(history(), "since=24h&rate=H100=2.5")
    check_golden(Path("api/findings_over_time.json"), orjson.dumps(answer, option=orjson.OPT_INDENT_2) + b"\n")
    seen: set[tuple[str, str]] = set()
    conform(answer, PastFindingsAnswer, seen, "findings")
    described = {
        (name, key) for name in OVER_TIME for key in typing.get_type_hints(getattr(findings_json, name))
    }
    assert described - seen == set()


def test_most_expensive_first_with_evidence_and_next_step() -> None:
    answer = ask(history(), "since=24h")
    costs = [one["cost_gpu_hours"] for one in answer["findings"] if one["cost_gpu_hours"] is not None]
    assert costs == sorted(costs, reverse=True)
    assert [one["kind"] for one in answer["findings"]][:2] == ["held_idle", "unused"]
    assert costs[0] == pytest.approx(40.0), "it lasts, through four windows"
    for one in answer["findings"]:
        assert one["evidence"]
        assert one["next"]
        assert one["link"].startswith("./#/explore?q=")
    assert [(one["kind"], one["count"]) for one in answer["folded"]] == [("held_idle", 5)]
    whole = ask(history(), "since=24h&all=1")
    assert (whole["folded"], len(whole["findings"])) == ([], len(answer["findings"]) + 5)
    assert whole["cost_gpu_hours"] == pytest.approx(answer["cost_gpu_hours"])


def test_without_since_it_is_what_is_wrong_now() -> None:
    with Client(service(history())[1]) as client:
        assert [one["kind"] for one in client.get("/api/findings").json()["findings"]] == ["gpu_lost"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=", "since: '' is not a duration, date or time; for example 7d"),
        ("since=soon", "since: 'soon' is not a duration"),
        ("since=1h&until=2h", "until: '2h' ("),
        ("since=1h&rate=cheap", "rate: 'cheap' is not a price"),
        ("since=1h&rate=0.3/kWh", "rate: '0.3/kWh' is per kWh; findings need a rate per GPU-hour"),
        ("since=1h&" + "&".join(f"a{n}=1" for n in range(30)), "more than 20 parameters"),
    ],
)
def test_a_mistake_is_one_sentence(query: str, said: str) -> None:
    with Client(service(history())[1]) as client:
        answer = client.get(f"/api/findings?{query}")
    assert (answer.status_code, answer.json()["errorType"]) == (400, "bad_data")
    assert said in answer.json()["error"]


def test_a_range_beyond_the_limit_is_refused_and_counted() -> None:
    before = LIMITS_REACHED.counts()["findings_max_range"]
    with Client(service(history(), limits=Limits(findings_max_range=86400.0))[1]) as client:
        answer = client.get("/api/findings?since=2d")
    assert answer.status_code == 400
    assert "--findings-max-range" in answer.json()["error"]
    assert LIMITS_REACHED.counts()["findings_max_range"] == before + 1


def test_an_answer_computes_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and sums are made in other threads than the one that answers clients."""
    threads: set[str] = set()
    from gpuscope.judge.reports.findings import finding_windows
    from gpuscope.serve.reports import findings_over_time

    def noting(name: str, module: Any) -> None:
        function = getattr(module, name)

        def noted(*args: Any, **more: Any) -> Any:
            threads.add(threading.current_thread().name)
            return function(*args, **more)

        monkeypatch.setattr(module, name, noted)

    noting("past_findings", findings_over_time)
    noting("LostSpan", finding_windows)
    past, _ = service(history())

    async def scene() -> str:
        await past.watch_once()
        return threading.current_thread().name

    loop_thread = run(scene())
    assert threads
    assert loop_thread not in threads


class FailingEngine:
    """Answers until it is told to fail."""

    def __init__(self, made: History) -> None:
        self._engine = made.engine()
        self.name = "test"
        self.failing_words = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def range(self, expression: str, *args: Any, **more: Any) -> Matrix:
        if self.failing_words and self.failing_words in expression:
            raise EngineFailed("too many samples")
        return await self._engine.range(expression, *args, **more)


def test_a_kind_that_the_engine_refuses_is_named_and_costs_only_itself() -> None:
    made = history()
    engine = FailingEngine(made)
    engine.failing_words = CHECKS["held_idle"].promql
    past = FindingsOverTime(
        FindingLedger(engine), LiveFleet(_nothing, "test"), clock=lambda: made.end_ms / 1000 + 60
    )
    with Client(Router(page_routes(LiveFleet(_nothing, "test"), None, past.answer), page_files)) as client:
        answer = client.get("/api/findings?since=24h").json()
    assert "held_idle is not known for 24.0 h: too many samples" in answer["coverage"]["missing"]
    assert "throttled" in {one["kind"] for one in answer["findings"]}


class SlowEngine:
    """Does not answer for the time before `since_ms`."""

    def __init__(self, made: History, since_ms: int) -> None:
        self._engine = made.engine()
        self._since_ms = since_ms
        self.is_waited_for = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def range(self, expression: str, start_ms: int, *args: Any, **more: Any) -> Matrix:
        if start_ms < self._since_ms:
            self.is_waited_for.set()
            await asyncio.get_running_loop().create_future()  # never
        return await self._engine.range(expression, start_ms, *args, **more)


def test_an_answer_does_not_wait_until_older_hours_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscope.serve.reports.findings_over_time.WATCHED_WAIT_SECONDS", 0.01)
    made = history()

    async def ask_while_reading() -> dict[str, Any]:
        engine = SlowEngine(made, made.end_ms - WINDOW_MS)
        live = LiveFleet(_nothing, "test")
        past = FindingsOverTime(FindingLedger(engine), live, clock=lambda: made.end_ms / 1000 + 60)
        watch = asyncio.create_task(past.watch())
        await engine.is_waited_for.wait()  # the newest hours are read, and the lock is held
        request = Request("GET", "/api/findings", query=b"since=24h")
        answer = await asyncio.wait_for(past.answer(request), 60)
        watch.cancel()
        assert answer.status == 200
        found: dict[str, Any] = orjson.loads(bytes(answer.body))
        return found

    answer = asyncio.run(ask_while_reading())
    assert "not read yet" in answer["coverage"]["missing"][0]
    assert answer["coverage"]["gpus"] > 0


async def _nothing() -> FleetSamples:
    return {}


def test_metrics_count_findings_and_their_cost() -> None:
    past, _ = service(history())
    assert list(past.families()) == []
    run(past.watch_once())
    text = encode_text(list(past.families())).decode()
    assert 'gpuscope_findings{kind="gpu_lost"} 1' in text
    assert "# TYPE gpuscope_finding_cost_gpu_hours gauge" in text
    cost = float(text.partition('gpuscope_finding_cost_gpu_hours{kind="throttled"} ')[2].split()[0])
    assert cost == pytest.approx(2.5, rel=0.01)


def test_the_watch_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = history()
    engine = FailingEngine(made)
    engine.failing_words = "gpuscope_gpu_up"
    past = FindingsOverTime(
        FindingLedger(engine), LiveFleet(_nothing, "test"), clock=lambda: made.end_ms / 1000 + 60
    )
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        engine.failing_words = ""
        if len(slept) > 60:
            raise asyncio.CancelledError

    monkeypatch.setattr("gpuscope.serve.reports.findings_over_time.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(past.watch())
    assert "too many samples" in caplog.text
    assert [one.name for one in past.families()] == ["gpuscope_findings", "gpuscope_finding_cost_gpu_hours"]
