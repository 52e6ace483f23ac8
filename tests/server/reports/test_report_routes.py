"""`/api/report`: its JSON, CSV and HTML, mistakes as one sentence, and few reports at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.time_text import to_rfc3339
from gpuscope.history.engines.query_engine import EngineUnreachable, QueryEngine
from gpuscope.history.promql.result import Matrix
from gpuscope.model.series import Labels, Series
from gpuscope.serve.http.messages import Router
from gpuscope.serve.reports.report_routes import ReportThreads, report_routes
from tests.reports.test_counter_growth import END_MS
from tests.reports.test_usage import FLEET, HOSTILE, SampleEngine
from tests.server.client import Client
from tests.waiting import wait_for


def client(engine: QueryEngine | None = None, limits: Limits | None = None) -> Client:
    limits = limits or Limits()
    threads = ReportThreads(lambda: engine or SampleEngine(FLEET), limits)
    return Client(Router(report_routes(threads, limits, lambda: END_MS / 1000)))


def test_json() -> None:
    answer = client().get("/api/report?by=user&since=4h&rate=2&co2=475").json()
    assert [row["name"] for row in answer["rows"]] == ["ann", HOSTILE, "bob"]
    assert answer["rows"][0]["cost"] == pytest.approx(6)
    assert answer["total"]["gpu_hours"] == pytest.approx(5.5)
    assert answer["invariant"]["gpu_hours"] == pytest.approx(12, rel=1e-3)
    assert answer["rate"] == {"text": "2", "basis": "held"}
    assert answer["pieces"][0]["source"] == "samples"


def test_the_range_may_be_given_by_its_ends() -> None:
    end = END_MS / 1000
    answer = client().get(f"/api/report?start={end - 3600}&end={end}&kind=idle").json()
    assert (answer["start"], answer["end"], answer["kind"]) == (end - 3600, end, "idle")


def test_since_and_until_may_be_times_and_dates_of_a_zone() -> None:
    end = END_MS / 1000
    for since, until in (
        (to_rfc3339(end - 3600), to_rfc3339(end)),
        (f"{end - 3600:.0f}", f"{end:.0f}"),
        (to_rfc3339(end - 3600), ""),
    ):
        answer = client().get(f"/api/report?since={since}&until={until}").json()
        assert (answer["start"], answer["end"]) == (end - 3600, end)
    answer = client().get("/api/report?since=today&time_zone=Asia/Tokyo").json()
    assert answer["start"] % 86_400 == 15 * 3600


def test_csv_does_not_start_a_formula() -> None:
    fleet = [one for one in FLEET if dict(one.labels).get("name") != "bob"]
    renamed = [
        Series(
            tuple(("name", "=1+1") if pair == ("name", "ann") else pair for pair in one.labels),
            one.timestamps,
            one.values,
        )
        for one in fleet
    ]
    answer = client(SampleEngine(renamed)).get("/api/report?since=4h&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "\n'=1+1," in answer.text.replace("\r", "")


def test_html_has_a_policy_of_its_own() -> None:
    answer = client().get("/api/report?since=4h&format=html")
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "<svg" in answer.text
    assert "<script" not in answer.text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=users", "by: 'users' is not one of user, account"),
        ("since=soon", "since: 'soon' is not a duration"),
        ("start=5&end=4", "start: '5' is a number without a unit"),
        ("since=yesterday&until=yesterday", "until: 'yesterday' ("),
        ("since=1d&time_zone=Mars", "time_zone: 'Mars' is not a time zone such as Europe/Berlin"),
        ("since=99999d", "the range is 99,999 days long; at most 3,660 days are read"),
        ("start=100000000&end=99999999999", "at most 3,660 days are read"),
        ("start=x", "start: 'x' is not a duration, date or time"),
        ("kind=cost", "kind: 'cost' is not one of usage, idle"),
        ("rate=x", "rate: 'x' is not a price"),
        ("co2=x", "co2: 'x' is not a number"),
        ("nope=1", "unknown parameter 'nope'"),
        ("by=user&by=pod", "by is given 2 times"),
        ("by=%FF", "is not one of user"),
    ],
)
def test_a_mistake_is_one_sentence(query: str, words: str) -> None:
    answer = client().get(f"/api/report?{query}")
    assert answer.status_code == 400
    assert words in answer.json()["error"]


class Unreachable(SampleEngine):
    async def range(self, *args: object, **more: object) -> Matrix:
        raise EngineUnreachable("cannot reach http://x")


def test_an_engine_that_does_not_answer_is_503() -> None:
    answer = client(Unreachable(FLEET)).get("/api/report")
    assert (answer.status_code, answer.json()["error"]) == (503, "cannot reach http://x")


class HeldUp(SampleEngine):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__(FLEET)
        self.asked, self.go_on = threading.Event(), threading.Event()

    async def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_series: int | None = None,
    ) -> list[Labels]:
        self.asked.set()
        await asyncio.to_thread(self.go_on.wait)
        return await super().series(selectors, start_ms, end_ms)


def test_reports_at_once_are_bounded() -> None:
    engine, before = HeldUp(), LIMITS_REACHED.counts().get("report_max_concurrency", 0)
    asked = client(engine, Limits(report_max_concurrency=1))
    answers: list[int] = []
    first = threading.Thread(target=lambda: answers.append(asked.get("/api/report?since=4h").status_code))
    first.start()
    wait_for(engine.asked.is_set, "the first report to wait")
    busy = asked.get("/api/report?since=4h")
    assert (busy.status_code, busy.json()["error"]) == (503, "other reports are being made; try again")
    assert LIMITS_REACHED.counts()["report_max_concurrency"] == before + 1
    engine.go_on.set()
    first.join()
    assert answers == [200]
    assert asked.get("/api/report?since=4h").status_code == 200, "there is room again"


def test_rows_are_bounded_and_the_total_has_all() -> None:
    before = LIMITS_REACHED.counts().get("report_max_rows", 0)
    answer = client(limits=Limits(report_max_rows=1)).get("/api/report?since=4h").json()
    assert [row["name"] for row in answer["rows"]] == ["ann"]
    assert answer["rows_left_out"] == 2
    assert answer["total"]["gpu_hours"] == pytest.approx(5.5)
    assert LIMITS_REACHED.counts()["report_max_rows"] == before + 1
