"""The same requests to a real Prometheus and to us: status, content type and content are the same.

What may differ is said here and nowhere else: the words about what is wrong with a PromQL expression, the words
of PromQL's notes, times and versions, and which samples were held in memory at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import running_prometheus
from tests.integration_api import asked
from tests.integration_api.raw import Answered, Asked, get, send
from tests.integration_api.servers import Day, differences, running_gpuscope
from tests.promql.prometheus import fill

# "1:5: parse error: ..." and, where it is the expression that cannot be evaluated, the engine's own words.
PARSE_ERROR = re.compile(r"((?:invalid parameter \"[^\"]+\": )?)(?:\d+:\d+: )?parse error: .*", re.DOTALL)


def problem(request: Asked, ours: Answered, theirs: Answered) -> str:
    """What differs, or nothing."""
    if ours.status != theirs.status:
        return f"status {ours.status} {ours.content[:150]!r}, not {theirs.status} {theirs.content[:150]!r}"
    if kind(ours) != kind(theirs):
        return f"content type {ours.kind!r}, not {theirs.kind!r}"
    if request.method == "HEAD":
        return ""
    if not ours.kind.startswith("application/json"):
        return different_words(ours.content.decode(), theirs.content.decode())
    mine, its = ours.json(), theirs.json()
    if "error" in mine and "error" in its and its["errorType"] != "execution":
        words = different_words(mine["error"], its["error"])
        if words:
            return words
    return "; ".join(list(differences(normal(mine), normal(its)))[:3])


def different_words(ours: str, theirs: str) -> str:
    if PARSE_ERROR.fullmatch(theirs):
        begin = PARSE_ERROR.sub(r"\1", theirs)
        return "" if ours.startswith(begin) and len(ours) > len(begin) else f"{ours!r}, not {theirs!r}"
    return "" if ours == theirs else f"{ours[:150]!r}, not {theirs[:150]!r}"


def kind(answer: Answered) -> str:
    return answer.kind.replace(" ", "")


def normal(body: Any) -> Any:
    """Without what may differ."""
    found = dict(body)
    if "error" in found:
        assert found["error"], "an error says something"
        found["error"] = "…"  # compared before
    for notes in ("warnings", "infos"):
        if notes in found:
            # In whatever order; what PromQL says is in its own words.
            found[notes] = sorted("PromQL …" if one.startswith("PromQL") else one for one in found[notes])
    data = found.get("data")
    if isinstance(data, list) and all(isinstance(one, dict) for one in data):
        found["data"] = sorted(data, key=lambda one: sorted(map(str, one.items())))  # series come as they lie
    if isinstance(data, dict):
        found["data"] = data = dict(data)
        if data.get("resultType") == "vector":  # in whatever order; test_same_answers has those that are sorted
            data["result"] = sorted(data["result"], key=lambda one: sorted(one["metric"].items()))
        if "stats" in data:
            data["stats"] = normal_statistics(data["stats"])
    return found


def normal_statistics(stats: Any) -> Any:
    assert all(value >= 0 for value in stats["timings"].values())
    samples = {name: value for name, value in stats["samples"].items() if name != "peakSamples"}
    return {
        "timings": sorted(stats["timings"]),
        "samples": samples,
        "peak": stats["samples"]["peakSamples"] >= 0,
    }


@pytest.fixture(scope="module")
def peer(day: Day) -> Iterator[str]:
    """With samples counted for each step, which we always do when asked and Prometheus only with this flag."""
    with running_prometheus(flags=["--enable-feature=promql-per-step-stats"]) as url:
        fill(url, day.series)
        yield url


AREAS: dict[str, Callable[[Day], list[Asked]]] = {
    "queries": asked.queries,
    "ranges": asked.ranges,
    "series": asked.about_series,
    "expressions": lambda day: asked.about_queries(),
    "rules": lambda day: asked.about_rules(),
    "the rest": lambda day: asked.about_the_rest(),
    "methods": lambda day: asked.methods(),
    "federation": lambda day: asked.federation(),
}


@pytest.mark.parametrize("area", AREAS)
def test_every_request_has_the_same_answer(gpuscope: str, peer: str, day: Day, area: str) -> None:
    found = problems(AREAS[area](day), gpuscope, peer)
    assert not found, f"{len(found)} differ:\n" + "\n".join(found[:20])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parameters_at_random(gpuscope: str, peer: str, day: Day, seed: int) -> None:
    found = problems(asked.soup(day, seed, 300), gpuscope, peer)
    assert not found, f"{len(found)} differ:\n" + "\n".join(found[:20])


def problems(requests: Iterable[Asked], ours: str, theirs: str) -> list[str]:
    found = ((one, problem(one, send(ours, one), send(theirs, one))) for one in requests)
    return [f"{one}\n    {what}" for one, what in found if what]


def test_flags_have_names_and_defaults_of_prometheus(gpuscope: str, peer: str) -> None:
    ours, theirs = (send(url, get("/api/v1/status/flags")).json()["data"] for url in (gpuscope, peer))
    shared = {name: value for name, value in ours.items() if "." in name}
    assert shared.keys() <= theirs.keys()
    for name in (
        "query.max-samples",
        "query.timeout",
        "query.lookback-delta",
        "query.max-concurrency",
        "log.level",
    ):
        assert shared[name] == (theirs[name] if name != "log.level" else "info")
    assert ours["query-timeout"] == "2m"


def test_the_store_is_described_alike(gpuscope: str, peer: str) -> None:
    for limit in ("1", "3", "1000"):
        one = get("/api/v1/status/tsdb", {"limit": limit})
        ours, theirs = (send(url, one).json()["data"] for url in (gpuscope, peer))
        for told in (ours, theirs):
            del told["headStats"]["chunkCount"]  # of another kind here
            for rows in told.values():
                if isinstance(rows, list):  # which of those with equal numbers comes first is chance there
                    rows.sort(key=lambda row: (-row["value"], row["name"]))
        if limit == "1000":
            assert not list(differences(ours, theirs))
        for name, rows in ours.items():
            if isinstance(rows, list):
                assert [row["value"] for row in rows] == [row["value"] for row in theirs[name]]


def test_the_state_of_the_server_has_what_is_known(gpuscope: str, peer: str) -> None:
    ours, theirs = (send(url, get("/api/v1/status/runtimeinfo")).json()["data"] for url in (gpuscope, peer))
    only_of_go = {"GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GODEBUG"}
    assert ours.keys() == theirs.keys() - only_of_go
    assert {name: type(value) for name, value in ours.items()} == {name: type(theirs[name]) for name in ours}
    assert (ours["hostname"], ours["CWD"]) == (theirs["hostname"], theirs["CWD"])
    ours, theirs = (send(url, get("/api/v1/status/buildinfo")).json()["data"] for url in (gpuscope, peer))
    assert theirs.keys() <= ours.keys()


def test_a_difference_is_noticed(gpuscope: str, peer: str, day: Day) -> None:
    """Of two requests that differ in one thing the answers do too: silence above means something."""
    right = get("/api/v1/query", {"query": "watts", "time": day.middle, "stats": "all"})
    for wrong in (
        get("/api/v1/query", {"query": "watts", "time": day.middle}),
        get("/api/v1/query", {"query": "watts", "time": day.middle + 1, "stats": "all"}),
        get("/api/v1/query", {"query": "watts + 1e-9", "time": day.middle, "stats": "all"}),
        get("/api/v1/query", {"query": "watts", "time": day.middle, "stats": "all", "limit": 1}),
        get("/api/v1/query", {"query": "watts", "time": "x"}),
        get("/api/v1/nothing"),
    ):
        assert problem(right, send(gpuscope, wrong), send(peer, right)), wrong


def test_a_large_answer_is_packed_for_who_asks(gpuscope: str, peer: str, day: Day) -> None:
    range_query = {"query": "watts", "start": day.start, "end": day.end, "step": 15}
    for encodings in (
        "gzip",
        "deflate",
        "br, gzip",
        "gzip, deflate, br",
        "deflate,gzip",
        "identity",
        "gzip;q=0",
        "*",
    ):
        one = get("/api/v1/query_range", range_query, accept_encoding=encodings)
        ours, theirs = send(gpuscope, one), send(peer, one)
        assert ours.headers.get("content-encoding") == theirs.headers.get("content-encoding"), encodings
        assert not problem(one, ours, theirs)
        assert "accept-encoding" in ours.headers["vary"].lower()


def test_a_small_answer_is_not_packed(gpuscope: str) -> None:
    answer = send(gpuscope, get("/api/v1/query", {"query": "1"}, accept_encoding="gzip"))
    assert "content-encoding" not in answer.headers
    assert answer.json()["status"] == "success"


def test_no_other_site_may_read(gpuscope: str) -> None:
    for method in ("GET", "OPTIONS"):
        answer = send(gpuscope, Asked(method, "/api/v1/query?query=1", headers={"origin": "http://a.example"}))
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_limits_that_were_set_hold_alike(day: Day, tmp_path: Path) -> None:
    theirs_set = ["--query.max-samples=300", "--query.lookback-delta=20s"]
    ours_set = ("--query-max-samples", "300", "--query-lookback", "20s", "--query-max-concurrency", "2")
    with running_prometheus(flags=theirs_set) as theirs, running_gpuscope(tmp_path / "data", *ours_set) as ours:
        for url in (theirs, ours):
            fill(url, day.series)
        requests = [
            get("/api/v1/query", {"query": query, "time": at})
            # Not rate(watts[2h]): Prometheus holds one series at a time for it, we hold all of them.
            for query in ("watts", "gauge", "watts[2h]", "count(watts)", "watts + watts")
            for at in (day.middle, day.middle + 7, day.end + 21)
        ]
        assert not problems(requests, ours, theirs)
        flags = [send(url, get("/api/v1/status/flags")).json()["data"] for url in (ours, theirs)]
    for name in ("query.max-samples", "query.lookback-delta"):
        assert flags[0][name] == flags[1][name]
    assert flags[0]["query-max-concurrency"] == "2"
