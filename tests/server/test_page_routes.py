"""The live answer: made once for all who ask, never waited for twice, never too old."""

from __future__ import annotations

import asyncio
import gzip
import html
import re

import orjson
import pytest

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.settings import load_settings
from gpuscope.judge.rules.shipped import shipped_groups
from gpuscope.serve import page_routes
from gpuscope.serve.api_types.findings_json import FindingJson
from gpuscope.serve.http.messages import Router
from gpuscope.serve.live import live_fleet
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import FleetSamples, by_node
from gpuscope.serve.live.live_fleet import FRESH_SECONDS, MAX_CPU_SHARE, MAX_READING_SHARE, LiveFleet
from gpuscope.serve.live.sample_judge import SampleJudge
from tests.health.fleets import NOW, gpu, node
from tests.server.client import Client
from tests.waiting import wait_in_loop_for


class Origin:
    """Gives the time of each reading as the node's own time; can be held up, and can fail."""

    def __init__(self) -> None:
        self.readings = 0
        self.open = asyncio.Event()
        self.open.set()
        self.failing = False
        self.failed = False

    async def read(self) -> FleetSamples:
        self.readings += 1
        number = float(self.readings)
        await self.open.wait()
        if self.failing:
            self.failed = True
            raise OSError("the store is gone")
        return {"a": [("gpuscope_agent_snapshot_timestamp_seconds", {"instance": "a"}, number)]}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.cpu_seconds = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0

    def process_time(self) -> float:
        return self.cpu_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live_fleet, "time", made)
    return made


async def reading_shown(live: LiveFleet) -> float:
    return float(orjson.loads(await live.body(gzipped=False))["taken_at"])


async def made_anew(origin: Origin, live: LiveFleet, number: int) -> None:
    """Lets the answer that is being made in the background be finished."""
    while await reading_shown(live) < number:
        await asyncio.sleep(0)
    assert origin.readings == number


def test_all_viewers_share_one_answer(clock: Clock) -> None:
    async def scene() -> None:
        origin = Origin()
        live = LiveFleet(origin.read, "test")
        assert await asyncio.gather(*(reading_shown(live) for _ in range(20))) == [1.0] * 20
        clock.now += FRESH_SECONDS / 2
        assert await reading_shown(live) == 1
        assert origin.readings == 1

    asyncio.run(scene())


def test_nobody_waits_while_the_next_one_is_made(clock: Clock) -> None:
    async def scene() -> None:
        origin = Origin()
        live = LiveFleet(origin.read, "test")
        await reading_shown(live)
        origin.open.clear()
        clock.now += 1
        assert await reading_shown(live) == 1
        clock.now += FRESH_SECONDS / 2
        assert await reading_shown(live) == 1
        await asyncio.sleep(0)
        assert origin.readings == 2  # and it is made once
        origin.open.set()
        await made_anew(origin, live, 2)

    asyncio.run(scene())


def test_what_is_too_old_is_not_shown(clock: Clock) -> None:
    async def scene() -> None:
        live = LiveFleet(Origin().read, "test")
        assert await reading_shown(live) == 1
        clock.now += 5.1
        assert await reading_shown(live) == 2

    asyncio.run(scene())


def test_a_viewer_who_leaves_does_not_take_the_answer_along(clock: Clock) -> None:
    async def scene() -> None:
        origin = Origin()
        origin.open.clear()
        live = LiveFleet(origin.read, "test")
        leaving, staying = (asyncio.create_task(reading_shown(live)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        origin.open.set()
        assert await staying == 1
        assert origin.readings == 1

    asyncio.run(scene())


def test_a_failure_is_told_to_who_asks_next_and_ends_with_the_trouble(clock: Clock) -> None:
    async def scene() -> None:
        origin = Origin()
        live = LiveFleet(origin.read, "test")
        await reading_shown(live)
        origin.failing = True
        clock.now += 1
        assert await reading_shown(live) == 1  # the failure comes after it
        await wait_in_loop_for(lambda: origin.failed, "the failure")
        await asyncio.sleep(0)  # from the origin to who made the answer
        with pytest.raises(OSError, match="gone"):
            await reading_shown(live)
        origin.failing = False
        assert await reading_shown(live) > 1

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("cpu_seconds", "seconds_between"), [(0.5, 0.5 / MAX_CPU_SHARE), (0.0, 0.5 / MAX_READING_SHARE)]
)
def test_looks_at_a_fleet_that_takes_long_are_further_apart(
    clock: Clock, cpu_seconds: float, seconds_between: float
) -> None:
    """Waiting for an engine, or for a turn on a busy machine, counts less than work of this process."""

    async def scene() -> None:
        origin = Origin()

        async def read_for_half_a_second() -> FleetSamples:
            clock.now += 0.5
            clock.cpu_seconds += cpu_seconds
            return await origin.read()

        live = LiveFleet(read_for_half_a_second, "test")
        await live.newest()
        clock.now += FRESH_SECONDS
        await live.newest()  # two slow looks in a row: it is the fleet, not the start
        assert origin.readings == 2
        clock.now += seconds_between - 0.6
        await live.newest()
        assert origin.readings == 2
        clock.now += 0.2
        await live.newest()
        assert origin.readings == 3

    asyncio.run(scene())


def test_gzip_has_the_same_in_it(clock: Clock) -> None:
    async def scene() -> None:
        live = LiveFleet(Origin().read, "test")
        assert gzip.decompress(await live.body(gzipped=True)) == await live.body(gzipped=False)

    asyncio.run(scene())


def test_a_failure_with_a_reason_reaches_the_viewer() -> None:
    async def read() -> FleetSamples:
        raise GpuscopeError("http://engine cannot be reached")

    with Client(Router(page_routes.page_routes(LiveFleet(read, "test")), page_routes.page_files)) as client:
        answer = client.get("/api/live")
    assert (answer.status_code, answer.json()["error"]) == (503, "http://engine cannot be reached")


@pytest.mark.parametrize(
    ("grafana", "links"),
    [("", {}), ("https://grafana.example.org", {"grafana": "https://grafana.example.org"})],
)
def test_the_page_is_given_its_links(grafana: str, links: dict[str, str]) -> None:
    live = LiveFleet(Origin().read, "test")
    with Client(Router(page_routes.page_routes(live, grafana_url=grafana), page_routes.page_files)) as client:
        assert client.get("/api/links").json() == links


@pytest.mark.parametrize("value", ["javascript:alert(1)", "grafana:3000", "//grafana"])
def test_only_a_web_address_may_be_linked_to(value: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{value!r} is not a URL")):
        load_settings({"grafana_url": value}, {})
    assert load_settings({"grafana_url": "https://g/grafana/"}, {}).grafana_url == "https://g/grafana"


def test_findings_are_those_of_the_live_answer() -> None:
    samples, judgement = [*node(), *gpu("0", up=0.0)], SampleJudge()
    judgement.add(samples, NOW)

    async def read() -> FleetSamples:
        return by_node(samples)

    live_fleet = LiveFleet(read, "test", judge=FleetJudge(judgement), clock=lambda: NOW)
    with Client(Router(page_routes.page_routes(live_fleet), page_routes.page_files)) as client:
        found = client.get("/api/findings").json()
        live = client.get("/api/live").json()["findings"]
    (finding,) = found["findings"]
    assert found["not_known"] == []
    assert [{**finding, "cost_gpu_hours": None}] == live
    assert set(finding) == set(FindingJson.__annotations__)
    assert (finding["kind"], finding["severity"], finding["gpus"]) == ("gpu_lost", "critical", ["0"])
    contract = {"kind", "severity", "node", "gpus", "uuids", "owner", "since", "cost_gpu_hours", "why", "next"}
    assert contract | {"evidence"} <= set(finding), "scripts rely on these names"
    assert {"kind", "namespace", "name"} <= set(finding["owner"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/nothing", 404),
        ("DELETE", "/api/nothing", 404),
        ("POST", "/", 405),
        ("PUT", "/api/live", 405),
        ("POST", "/api/findings", 405),
    ],
)
def test_what_is_nowhere_is_not_found_whatever_the_method(method: str, path: str, status: int) -> None:
    async def read() -> FleetSamples:
        return {}

    with Client(Router(page_routes.page_routes(LiveFleet(read, "test")), page_routes.page_files)) as client:
        assert client.request(method, path).status_code == status


def test_the_runbook_of_every_shipped_alert_opens() -> None:
    async def read() -> FleetSamples:
        return {}

    with Client(Router(page_routes.page_routes(LiveFleet(read, "test")), page_routes.page_files)) as client:
        for group in shipped_groups():
            for rule in group.rules:
                answer = client.get(f"/explain/alert/{rule.alert}")
                assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
                assert html.escape(rule.check.meaning) in answer.text
        idle = client.get("/explain/alert/HeldIdle").text
        assert "gpuscope_process_idle_seconds" in idle
        assert client.get("/explain/alert/<script>").status_code == 404
