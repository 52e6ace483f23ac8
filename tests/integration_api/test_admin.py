"""Administration, asked of a real Prometheus and of us with the same data: deletions, mistakes, snapshots."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.engines import running_prometheus
from tests.integration_api.servers import Day, ask, differences, running_gpuscope
from tests.promql.prometheus import fill

V1 = "/api/v1"
DELETE = f"{V1}/admin/tsdb/delete_series"


@pytest.fixture
def both(day: Day, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Ours and theirs, for each test anew: these tests take things away."""
    with running_gpuscope(tmp_path / "data", "--admin-api") as ours, running_prometheus() as theirs:
        for url in (ours, theirs):
            fill(url, day.series)
        yield ours, theirs


def send(url: str, path: str, parameters: list[tuple[str, object]], *, method: str = "POST") -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}{path}", urlencode(parameters).encode(), method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read())


def same_everywhere(both: tuple[str, str], day: Day) -> None:
    span = {"start": day.start, "end": day.end}
    for path, asked in (
        (f"{V1}/query_range", {"query": '{__name__=~".+"}', "step": 60, **span}),
        (f"{V1}/query", {"query": '{__name__=~".+"}[1d]', "time": day.end + 1}),
    ):
        ours, theirs = (ask(url, path, asked, post=True).body["data"]["result"] for url in both)
        for found in (ours, theirs):
            found.sort(key=lambda one: sorted(one["metric"].items()))
        assert list(differences(ours, theirs)) == []


@pytest.mark.parametrize(
    "chosen",
    [
        ["watts", '{__name__=~"b.+"}'],
        ["nothing_of_the_kind"],
        ['{__name__=~".+"}'],
    ],
)
def test_deleted_series_are_gone_on_both(both: tuple[str, str], day: Day, chosen: list[str]) -> None:
    for url in both:
        assert send(url, DELETE, [("match[]", one) for one in chosen]) == (204, b"")
    same_everywhere(both, day)


def test_a_part_of_the_time_is_gone_on_both(both: tuple[str, str], day: Day) -> None:
    span = [("start", day.middle - 600), ("end", day.middle + 600)]
    for url in both:
        assert send(url, DELETE, [("match[]", "watts"), *span], method="PUT")[0] == 204
    same_everywhere(both, day)
    for url in both:
        assert send(url, DELETE, [("match[]", '{__name__=~"w.*"}'), ("end", day.middle)])[0] == 204
    same_everywhere(both, day)


MISTAKES: list[list[tuple[str, object]]] = [
    [],
    [("match[]", "")],
    [("match[]", "sum(up)")],
    [("match[]", "watts"), ("start", "soon")],
    [("match[]", "watts"), ("end", "x")],
]


def test_mistakes_are_the_same_and_delete_nothing(both: tuple[str, str], day: Day) -> None:
    for parameters in MISTAKES:
        ours, theirs = (send(url, DELETE, parameters) for url in both)
        assert ours[0] == theirs[0] == 400
        assert ours[1]["errorType"] == theirs[1]["errorType"] == "bad_data"
    # Theirs has deleted the first by the time it reads the second; ours reads all of them before.
    assert send(both[0], DELETE, [("match[]", "watts"), ("match[]", "{")])[0] == 400
    same_everywhere(both, day)


def test_snapshots_and_room_given_back(both: tuple[str, str], tmp_path: Path, day: Day) -> None:
    for url in both:
        assert send(url, f"{V1}/admin/tsdb/clean_tombstones", []) == (204, b"")
        assert send(url, f"{V1}/admin/tsdb/snapshot", [("skip_head", "perhaps")])[0] == 400
    status, body = send(both[0], f"{V1}/admin/tsdb/snapshot", [("skip_head", "false")])
    assert status == 200
    copy = tmp_path / "data" / "snapshots" / json.loads(body)["data"]["name"]
    with running_gpuscope(copy) as url:
        asked = {"query": 'count(last_over_time({__name__=~".+"}[1d]))', "time": day.end + 1}
        whole, copied = (ask(one, f"{V1}/query", asked).body["data"]["result"] for one in (both[0], url))
        assert whole == copied
