"""The live stream: differences lead to the same picture, viewers share one encoding, and a stream resumes."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.checks.facts import Sample
from gpuscope.serve.api_types.live_stream_json import LiveDifference
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.live.event_stream import LiveStream
from gpuscope.serve.live.fleet_samples import FleetSamples, by_node
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.picture_differences import COLUMNS, LiveTables, difference, to_picture, to_tables
from tests.goldens import check_golden
from tests.health.fleets import NOW, gpu, node, of_gpu
from tests.server.live.pictures import fleet_state
from tests.server.live.stream_reader import apply_difference, read_events
from tests.server.test_api_golden import MISSING, stored
from tests.server.test_api_golden import samples as golden_samples

ROWS = st.lists(
    st.fixed_dictionaries(
        {"uuid": st.sampled_from("abcdefgh"), "state": st.sampled_from(["busy", "idle"])},
        optional={
            "busy": st.floats(0, 1),
            "power": st.floats(0, 2000),
            "temperature": st.floats(-40, 120),
            "memory_used": st.floats(0, 2e11),
        },
    ),
    max_size=8,
)
"""Short names, so that rows come, go, change places and repeat a key often."""


def picture_of(gpus: Any, findings: Any, now: float) -> Any:
    return {
        "now": now, "simulated": False, "source": "test", "counts": {"units": len(gpus)},
        "left_out": len(gpus) % 3, "not_known": len(gpus) % 2, "nodes": [],
        "gpus": gpus, "sessions": [], "jobs": [], "targets": [], "findings": findings,
    }  # fmt: skip


@given(st.lists(st.tuples(ROWS, st.lists(st.sampled_from("pqrstu"), unique=True)), min_size=2, max_size=5))
def test_differences_lead_to_the_same_picture(looks: list[tuple[Any, list[str]]]) -> None:
    tables = [
        to_tables(picture_of(gpus, [{"id": one, "kind": "k"} for one in ids], float(number)))
        for number, (gpus, ids) in enumerate(looks)
    ]
    shown: Any = to_picture(tables[0])["picture"]
    for old, new in pairwise(tables):
        change = orjson.loads(orjson.dumps(difference(old, new)))
        shown = apply_difference(COLUMNS, shown, change)
        assert shown == to_picture(new)["picture"]


@given(ROWS, st.lists(st.tuples(st.integers(0, 7), ROWS), max_size=4))
def test_tables_of_unchanged_rows_are_taken_from_the_picture_before(
    first: list[Any], changes: list[tuple[int, list[Any]]]
) -> None:
    rows, tables = first, to_tables(picture_of(first, [], 0.0))
    for at, others in changes:
        new = [one for one in others if one["uuid"] not in {row["uuid"] for row in rows}]
        rows = [*rows[:at], *new[:1], *rows[at + 1 :]]  # one row is replaced, removed or added; the others stay
        expected = to_tables(picture_of(rows, [], 1.0))
        tables, before = to_tables(picture_of(rows, [], 1.0), tables), tables
        assert difference(before, tables) == difference(before, expected)
        assert to_picture(tables) == to_picture(expected)


def test_rounding_is_that_of_the_screen() -> None:
    rounded: Any = to_picture(to_tables(picture_of([{"uuid": "a", "busy": 0.914, "power": 318.7}], [], 0.0)))
    assert rounded["picture"]["gpus"] == [{"uuid": "a", "busy": 0.91, "power": 319.0}]


def test_rows_that_change_places_move_alone() -> None:
    ids = [f"f{number}" for number in range(50)]
    moved = [ids[-1], *ids[:-1]]
    old, new = (to_tables(picture_of([], [{"id": one} for one in order], 0.0)) for order in (ids, moved))
    change: Any = difference(old, new)["findings"]
    assert (change["removed"], [one["at"] for one in change["added"]]) == ([49], [0])


def golden_looks() -> list[list[Sample]]:
    """A number that changes, one that goes and one that comes; a GPU that is lost; a node that is gone."""
    first = golden_samples()
    second = [one for one in first if one[0] != "gpuscope_gpu_power_watts"]
    second = [(*one[:2], 0.5) if one[0] == "gpuscope_gpu_utilization_ratio" else one for one in second]
    second.append(of_gpu("1", "tensor_active_ratio", 0.25))
    third = [(*one[:2], 0.0) if one[0] == "gpuscope_gpu_up" else one for one in second]
    return [first, second, third, [*node(), *gpu("0", busy=0.1)]]


def test_the_page_is_tested_with_the_same_events() -> None:
    pictures = [
        fleet_state(one, now=NOW, source="store", missing=MISSING, stored=stored(one)) for one in golden_looks()
    ]
    tables = [to_tables(one) for one in pictures]
    document = {
        "first": to_picture(tables[0]),
        "differences": [difference(old, new) for old, new in pairwise(tables)],
        "pictures": [to_picture(one)["picture"] for one in tables[1:]],
    }
    check_golden(Path("api/live_stream.json"), orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


class Fleet:
    """A fleet whose GPU is busier at each reading; can fail."""

    def __init__(self) -> None:
        self.readings = 0
        self.problem = ""
        self.is_readable: asyncio.Event | None = None

    async def read(self) -> FleetSamples:
        if self.is_readable is not None:
            await self.is_readable.wait()
        if self.problem:
            raise GpuscopeError(self.problem)
        self.readings += 1
        return by_node([*node(), *gpu("0", busy=self.readings / 100)])


class Viewer:
    def __init__(self, request: Request, response: Response) -> None:
        self.request = request
        self.response = response
        self.clock: float | None = None
        """The server's time of the last event."""
        self._events: list[tuple[str, str, Any]] = []
        self._text = b""
        assert response.pieces is not None
        self._pieces: AsyncIterator[bytes] = response.pieces
        is_gzip = ("content-encoding", "gzip") in response.headers
        self._unzip = zlib.decompressobj(wbits=31) if is_gzip else None

    async def next(self) -> tuple[str, str, Any]:
        """The next event that is not the clock."""
        while True:
            while not self._events:
                piece = await asyncio.wait_for(anext(self._pieces), 30)
                self._text += self._unzip.decompress(piece) if self._unzip else piece
                complete, _, self._text = self._text.rpartition(b"\n\n")
                self._events = read_events(complete)
            name, number, data = self._events.pop(0)
            if name != "clock":
                return name, number, data
            self.clock = data["now"]

    async def rest(self) -> bytes:
        return b"".join([piece async for piece in self._pieces])

    async def leave(self) -> None:
        self.request.on_disconnect()
        await self.rest()
        assert self.response.close is not None
        await self.response.close()


async def watch(stream: LiveStream, last_id: str = "", gzipped: bool = False) -> Viewer:
    headers = [("accept-encoding", "gzip")] if gzipped else []
    request = Request("GET", "/api/live/stream", [*headers, *([("last-event-id", last_id)] if last_id else [])])
    return Viewer(request, await stream.respond(request))


def stream_of(fleet: Fleet, **limits: Any) -> LiveStream:
    return LiveStream(LiveFleet(fleet.read, "test", clock=lambda: NOW), replace(Limits(), **limits))


def test_a_viewer_gets_the_picture_then_differences_and_resumes() -> None:
    async def scene() -> None:
        fleet = Fleet()
        stream = stream_of(fleet)
        viewer, other = await watch(stream), await watch(stream, gzipped=True)
        name, _, first = await viewer.next()
        assert (name, first["picture"]["gpus"][0]["busy"]) == ("picture", 0.01)
        name, last_id, change = await viewer.next()
        assert (name, change["gpus"]["numbers"]["busy"]) == ("difference", {"steps": "P"})
        name, other_id, late = await other.next()
        assert (name, other_id, late["picture"]["gpus"][0]["busy"]) == ("picture", last_id, 0.02)
        assert await other.next() == await viewer.next()  # the same event, compressed and plain
        await viewer.leave()
        again = await watch(stream, last_id)
        name, _, change = await again.next()
        assert name == "difference"
        assert fleet.readings >= 3
        for one in (other, again):
            await one.leave()

    asyncio.run(scene())


def test_a_defect_ends_no_stream(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The viewer is told, and gets a whole picture when it is over."""
    is_broken = True

    def compare(old: LiveTables, new: LiveTables) -> LiveDifference:
        if is_broken:
            raise ValueError("zip() argument 2 is shorter than argument 1")
        return difference(old, new)

    async def scene() -> None:
        nonlocal is_broken
        viewer = await watch(stream_of(Fleet()))
        assert (await viewer.next())[0] == "picture"
        name, _, data = await viewer.next()
        assert (name, data["error"]) == ("problem", "internal error; the server's log has the details")
        is_broken = False
        name, _, data = await viewer.next()
        assert (name, len(data["picture"]["gpus"])) == ("picture", 1)
        assert (await viewer.next())[0] == "difference"
        await viewer.leave()

    monkeypatch.setattr("gpuscope.serve.live.event_stream.difference", compare)
    asyncio.run(scene())
    assert [one.message for one in caplog.records if one.exc_info] == [
        "unexpected error while updating the live stream"
    ]


class MovedClock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("resumes", [False, True])
def test_the_first_viewer_of_a_while_gets_a_new_picture(resumes: bool) -> None:
    async def scene() -> None:
        fleet, clock = Fleet(), MovedClock()
        stream = LiveStream(LiveFleet(fleet.read, "test", clock=clock), Limits(), clock)
        viewer = await watch(stream)
        _, last_id, _ = await viewer.next()
        await viewer.leave()
        await _until_nobody_is_served()
        clock.now += 780  # nobody watches for 13 minutes
        again = await watch(stream, last_id if resumes else "")
        name, _, data = await again.next()
        while resumes and data["now"] < clock.now:  # differences of the time before
            name, _, data = await again.next()
        made_at = data["now"] if resumes else data["picture"]["now"]
        assert (name, made_at) == ("difference" if resumes else "picture", clock.now)
        assert again.clock == clock.now
        await again.leave()

    asyncio.run(scene())


async def _until_nobody_is_served() -> None:
    """The last picture is then too old to be served again."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others, timeout=30)


def test_while_the_numbers_cannot_be_read_the_last_picture_comes_with_its_age() -> None:
    async def scene() -> None:
        fleet, clock = Fleet(), MovedClock()
        stream = LiveStream(LiveFleet(fleet.read, "test", clock=clock), Limits(), clock)
        viewer = await watch(stream)
        await viewer.next()
        await viewer.leave()
        await _until_nobody_is_served()
        clock.now += 780
        fleet.problem = "no engine"
        again = await watch(stream)
        name, _, data = await again.next()
        assert (name, data["picture"]["now"], again.clock) == ("picture", NOW, NOW + 780)
        assert (await again.next())[0] == "problem"
        await again.leave()

    asyncio.run(scene())


@pytest.mark.parametrize("problem", ["", "no engine"])
def test_a_viewer_waits_for_the_first_picture_without_work(
    monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    waits: list[object] = []
    wait_for = asyncio.wait_for

    def counted(what: Any, seconds: float) -> Any:
        waits.append(what)
        return wait_for(what, seconds)

    async def scene() -> None:
        fleet = Fleet()
        fleet.problem, fleet.is_readable = problem, asyncio.Event()
        viewer = await watch(stream_of(fleet))
        monkeypatch.setattr("gpuscope.serve.live.event_stream.asyncio.wait_for", counted)
        first = asyncio.create_task(viewer.next())
        for _ in range(1000):
            await asyncio.sleep(0)
        fleet.is_readable.set()
        assert (await first)[0] == ("problem" if problem else "picture")
        following = asyncio.create_task(viewer.next())
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(waits) < 20, "it looks again and again for a picture that is not there"
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await viewer.leave()

    asyncio.run(scene())


def test_a_client_of_another_time_gets_the_whole_picture() -> None:
    async def scene() -> None:
        stream = stream_of(Fleet(), live_stream_kept_bytes=1)
        viewer = await watch(stream)
        _, first_id, _ = await viewer.next()
        before = LIMITS_REACHED.counts()["live_stream_kept_bytes"]
        assert (await viewer.next())[0] == "picture"  # differences are not kept, so it is behind at once
        assert LIMITS_REACHED.counts()["live_stream_kept_bytes"] > before
        for unknown in (first_id, "00000000-1", "nonsense", "-", f"{first_id[:-1]}99999", f"{first_id[:-1]}¹"):
            other = await watch(stream, unknown)
            assert (await other.next())[0] == "picture"
            await other.leave()
        await viewer.leave()

    asyncio.run(scene())


def test_streams_are_limited_in_number() -> None:
    async def scene() -> None:
        stream = stream_of(Fleet(), max_live_streams=1)
        viewer = await watch(stream)
        before = LIMITS_REACHED.counts()["max_live_streams"]
        refused = await stream.respond(Request("GET", "/api/live/stream"))
        assert (refused.status, b"max_live_streams" in refused.body) == (503, True)
        assert LIMITS_REACHED.counts()["max_live_streams"] == before + 1
        await viewer.leave()
        again = await watch(stream)
        assert (await again.next())[0] == "picture"
        await again.leave()

    asyncio.run(scene())


def test_a_stream_ends_after_its_lifetime_as_valid_gzip() -> None:
    async def scene() -> None:
        stream = stream_of(Fleet(), live_stream_lifetime=0.5)
        before = LIMITS_REACHED.counts()["live_stream_lifetime"]
        viewer = await watch(stream, gzipped=True)
        events = read_events(gzip.decompress(await viewer.rest()))
        assert [name for name, _, _ in events[:2]] == ["clock", "picture"]
        assert LIMITS_REACHED.counts()["live_stream_lifetime"] == before + 1

    asyncio.run(scene())


def test_an_origin_that_fails_is_told_once_and_the_stream_goes_on() -> None:
    async def scene() -> None:
        fleet = Fleet()
        stream = stream_of(fleet)
        viewer = await watch(stream)
        await viewer.next()
        fleet.problem = "http://engine cannot be reached"
        name, data = "difference", None
        while name == "difference":  # one look may have been under way
            name, _, data = await viewer.next()
        assert (name, data) == ("problem", {"error": "http://engine cannot be reached"})
        fleet.problem = ""
        assert (await viewer.next())[0] == "difference"
        await viewer.leave()

    asyncio.run(scene())
