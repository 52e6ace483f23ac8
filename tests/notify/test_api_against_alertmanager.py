"""Alertmanager's API v2 here and in a real Alertmanager: the requests of Grafana, karma and amtool.

Both have the same file and get the same alerts and silences; answers are compared as JSON, times and ids of
silences aside, and errors by status.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpuscope.base.time_text import to_rfc3339
from tests.engines import running, running_alertmanager
from tests.ports import free_port

CONFIG = """
route:
  receiver: everyone
  group_by: [alertname, node]
  group_wait: 1h
  routes:
  - {receiver: oncall, matchers: [severity=critical], continue: true}
  - {receiver: team, matchers: [team=~"ml|infra"], group_by: ['...']}
inhibit_rules:
- {source_matchers: [alertname=HostDown], target_matchers: [severity=warning], equal: [node]}
receivers: [{name: everyone}, {name: oncall}, {name: team}]
"""
ENDS = "2099-01-01T00:00:00.000Z"
STARTS = "2020-01-01T00:00:00.000Z"


def alert(name: str, **labels: str) -> dict[str, Any]:
    return {"labels": {"alertname": name, **labels}, "startsAt": STARTS, "endsAt": ENDS}


ALERTS = [
    {
        **alert("HostDown", node="n1", severity="critical"),
        "annotations": {"summary": "é <b>&"},
        "generatorURL": "http://p.example/graph?g0.expr=up+%3D%3D+0",
    },
    alert("GpuHot", node="n1", severity="warning", team="ml"),
    alert("GpuHot", node="n2", severity="warning", team="infra"),
    alert("Old", node="n3", empty=""),
    alert("Both", node="n4", severity="critical", team="ml"),
]
WRONG_ALERTS: list[Any] = [
    [{"labels": {}}],
    [{"labels": {"alertname": ""}}],
    [{"labels": {"alertname": "X"}, "startsAt": ENDS, "endsAt": STARTS}],
    [{"labels": {"alertname": "X"}, "startsAt": ENDS}],
    [{"annotations": {}}],
    {},
    "text",
]
SILENCE: dict[str, Any] = {
    "matchers": [{"name": "node", "value": "n2", "isRegex": False, "isEqual": True}],
    "startsAt": "2098-01-01T00:00:00.000Z", "endsAt": ENDS, "createdBy": "ann", "comment": "new fans",
}  # fmt: skip
NOW_SILENCE = {**SILENCE, "startsAt": STARTS, "comment": "now"}
WRONG_SILENCES: list[dict[str, Any]] = [
    {**SILENCE, "matchers": []},
    {**SILENCE, "matchers": [{"name": "a", "value": ".*", "isRegex": True}]},
    {**SILENCE, "matchers": [{"name": "a", "value": "(", "isRegex": True}]},
    {**SILENCE, "endsAt": STARTS},
    {**SILENCE, "id": "13db969f-0ea0-40b8-b51d-b731c5010945"},
    {**SILENCE, "comment": ""},
    {**SILENCE, "createdBy": ""},
]


def filtered(path: str, *matchers: str) -> str:
    return f"{path}?" + "&".join(f"filter={quote(one)}" for one in matchers)


READS = (
    "receivers",
    "alerts",
    "alerts?active=true&silenced=true&inhibited=true&unprocessed=true",  # Grafana
    "alerts?silenced=false&inhibited=false",
    "alerts?active=false",
    filtered("alerts", 'node="n1"', 'alertname=~"Gpu.*"'),
    filtered("alerts", 'team!=""'),
    filtered("alerts", "{node=n1}"),
    "alerts?receiver=team",
    "alerts?receiver=on.*",
    "alerts/groups",  # karma
    "alerts/groups?silenced=false&inhibited=false&active=true",
    "alerts/groups?receiver=oncall",
    "alerts?receiver_matchers=name%3Doncall",
    "alerts?receiver=team&receiver_matchers=name%3Doncall",
    "alerts/groups?receiver_matchers=name%3Doncall",
    "alerts/groups?receiver=team&receiver_matchers=name%3Doncall",
    "receivers?receiver_matchers=name%3D~%22t.*%22",
    filtered("alerts/groups", "node=n2"),
    "silences",
    filtered("silences", 'node="n2"'),
    filtered("silences", 'node="n1"'),
    "alerts?filter=%28",
    "alerts?receiver=(",
    "alerts?active=maybe",
    "silences?filter=%7B",
    "silence/13db969f-0ea0-40b8-b51d-b731c5010945",
    "nothing",
)
CHANGING = ("updatedAt", "id", "silencedBy", "silenceID", "uptime")
THIS_YEAR = f"{time.gmtime().tm_year}-"


class Api:
    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        data = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(f"{self.url}/api/v2/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                status, body = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, None
        return status, json.loads(body) if body.strip() else None

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            text: str = reply.read().decode()
            return text


@contextmanager
def both_running(folder: Path) -> Iterator[tuple[Api, Api]]:
    (folder / "alertmanager.yml").write_text(CONFIG)
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        sys.executable, "-m", "gpuscope", "server", "--alerting", folder / "alertmanager.yml",
        "--data", folder / "data", "--listen", address,
    ]  # fmt: skip
    with ExitStack() as stack:
        theirs = stack.enter_context(running_alertmanager(CONFIG))
        stack.enter_context(running(command, f"http://{address}/-/ready"))
        yield Api(theirs), Api(f"http://{address}")


def moment(seconds: float) -> str:
    return to_rfc3339(time.time() + seconds, "milliseconds")


def silence_changes(api: Api) -> list[Any]:
    """Whether each change of a silence keeps its id, and the states of all silences in the end."""
    found: list[Any] = []

    def make(starts_in: float, ends_in: float) -> dict[str, Any]:
        silence = {**SILENCE, "startsAt": moment(starts_in), "endsAt": moment(ends_in)}
        return {**silence, "id": api.call("POST", "silences", silence)[1]["silenceID"]}

    def change(silence: dict[str, Any], **fields: object) -> None:
        status, answer = api.call("POST", "silences", {**silence, **fields})
        found.append((status, answer and answer["silenceID"] == silence["id"]))

    active = make(-60, 60)
    active["startsAt"] = api.call("GET", f"silence/{active['id']}")[1]["startsAt"]
    found.append(active["startsAt"] > moment(-50))  # a start in the past becomes now
    change(active, endsAt=moment(120))
    change(active, comment="other", annotations={"a": "b"})
    change(active, endsAt=moment(-1))
    change(active, matchers=[*active["matchers"], {"name": "a", "value": "b", "isRegex": False}])
    change(active, endsAt=moment(180))  # expired by the change before
    pending = make(60, 120)
    change(pending, startsAt=moment(30))
    change(pending, startsAt=moment(40), endsAt=moment(50))
    change(pending, startsAt=moment(-30))
    another = make(0, 60)
    change(another, startsAt=moment(-300))
    two = {**SILENCE, "matchers": [{"name": name, "value": "1", "isRegex": False} for name in "ab"]}
    swapped = {**two, "id": api.call("POST", "silences", two)[1]["silenceID"]}
    change(swapped, matchers=swapped["matchers"][::-1])
    return [*found, [one["status"]["state"] for one in api.call("GET", "silences")[1]]]


def comparable(document: Any) -> Any:
    """Without times and ids that each server chooses; whether there is one counts. 0.34 has `routeLabels`."""
    if isinstance(document, dict):
        return {
            key: bool(one) if key in CHANGING else comparable(one)
            for key, one in document.items()
            if key != "routeLabels"
        }
    if isinstance(document, tuple):
        return tuple(map(comparable, document))
    if isinstance(document, list):
        found = [comparable(one) for one in document]
        return sorted(found, key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(document, str) and document.startswith(THIS_YEAR):
        return "now"
    return document


@pytest.mark.slow
def test_answers_are_those_of_alertmanager(tmp_path: Path) -> None:
    with both_running(tmp_path) as (theirs, ours):

        def same(method: str, path: str, document: object = None) -> Any:
            expected, found = (comparable(one.call(method, path, document)) for one in (theirs, ours))
            assert found == expected, (method, path, document)
            return found

        for wrong in WRONG_ALERTS:
            same("POST", "alerts", wrong)
        same("POST", "alerts", ALERTS)
        for wrong_silence in WRONG_SILENCES:
            same("POST", "silences", wrong_silence)
        same("POST", "silences", SILENCE)
        same("POST", "silences", NOW_SILENCE)
        for path in READS:
            same("GET", path)
        for api in (theirs, ours):
            for silence in api.call("GET", "silences")[1]:
                assert api.call("GET", f"silence/{silence['id']}")[1]["comment"] == silence["comment"]
                for _ in range(2):
                    assert api.call("DELETE", f"silence/{silence['id']}")[0] == 200
        same("GET", "silences")
        same("GET", "alerts")
        assert silence_changes(ours) == silence_changes(theirs)
        states = [one.call("GET", "status")[1] for one in (theirs, ours)]
        assert states[1].keys() == states[0].keys()
        assert states[1]["versionInfo"].keys() == states[0]["versionInfo"].keys()
        assert states[1]["cluster"]["status"] == states[0]["cluster"]["status"] == "disabled"
        # karma takes the version from here.
        version = re.search(r'alertmanager_build_info\{.*version="([\d.]+)"', ours.metrics())
        assert version is not None
        assert tuple(map(int, version[1].split("."))) >= (0, 22, 0)
