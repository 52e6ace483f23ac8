"""Alertmanager's API v2 on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.judge.notify.notify_state import NotifyState
from gpuscope.serve.api.alertmanager import AlertmanagerApi
from gpuscope.serve.api.notification_routes import NotificationRoutes
from gpuscope.serve.http.messages import Router
from tests.notify.memory_state import MemoryState
from tests.notify.timeline import START, ManualClock, recording_channels
from tests.server.client import Client

CONFIG = """
route:
  receiver: a
  group_by: [alertname]
  routes: [{receiver: b, matchers: [severity=crit], continue: true}, {matchers: [team=y]},
    {matchers: [team=night], mute_time_intervals: [always]}]
time_intervals: [{name: always, time_intervals: [{}]}]
inhibit_rules: [{source_matchers: [alertname=Down], target_matchers: [alertname=Hot], equal: [node]}]
receivers:
- {name: a, webhook_configs: [{url: 'http://127.0.0.1:1/s3cret'}]}
- {name: b, labels: {team: x}}
"""
LIMITS = Limits(
    max_alerts=5, max_alert_bytes=1000, max_alerts_request_bytes=4000, max_alerts_request_values=1000
)


@pytest.fixture
def notifier(tmp_path: Path) -> Notifier:
    path = tmp_path / "alertmanager.yml"
    path.write_text(CONFIG)
    config, clock = load_alerting(path), ManualClock()
    return Notifier(config, recording_channels(config, clock, []), clock, MemoryState(), LIMITS)


@pytest.fixture
def client(notifier: Notifier) -> Iterator[Client]:
    api = AlertmanagerApi(notifier, ManualClock(), LIMITS)
    with Client(Router([*api.routes(), *NotificationRoutes(notifier, ManualClock()).routes()])) as client:
        yield client


def post_alerts(client: Client, *labels: dict[str, str], **more: Any) -> tuple[int, Any]:
    answer = client.post("/api/v2/alerts", json=[{"labels": one, **more} for one in labels])
    return answer.status_code, answer.text


def names(client: Client, query: str = "") -> list[str]:
    return sorted(one["labels"]["alertname"] for one in client.get(f"/api/v2/alerts{query}").json())


def silence(**more: Any) -> dict[str, Any]:
    return {
        "matchers": [{"name": "node", "value": "n1", "isRegex": False}],
        "startsAt": to_rfc3339(START),
        "endsAt": to_rfc3339(START + 60),
        "createdBy": "me",
        "comment": "why",
        **more,
    }


def test_alerts_and_their_filters(client: Client) -> None:
    code, text = post_alerts(
        client,
        {"alertname": "Down", "node": "n1", "severity": "crit", "empty": ""},
        {"alertname": "Hot", "node": "n1"},
        {"alertname": "Hot2", "node": "n2"},
    )
    assert (code, text) == (200, "")
    silence_id = client.post("/api/v2/silences", json=silence(matchers=[
        {"name": "node", "value": "n2", "isRegex": False, "isEqual": True}])).json()["silenceID"]  # fmt: skip
    assert names(client) == ["Down", "Hot", "Hot2"]
    assert names(client, "?inhibited=false&silenced=false") == ["Down"]
    assert names(client, "?active=false&silenced=false") == ["Hot"]
    assert names(client, f"?filter={quote('node=~n1')}&filter={quote('alertname!=Hot')}") == ["Down"]
    assert names(client, f"?filter={quote('empty=')}") == ["Down", "Hot", "Hot2"]
    assert names(client, f"?filter={quote('severity!=')}") == ["Down"]
    assert names(client, "?receiver=b") == ["Down"]
    assert names(client, f"?receiver_matchers={quote('team=x')}") == ["Down"]
    hot = next(one for one in client.get("/api/v2/alerts").json() if one["labels"]["alertname"] == "Hot")
    down = next(one for one in client.get("/api/v2/alerts").json() if one["labels"]["alertname"] == "Down")
    assert hot["status"] == {
        "inhibitedBy": [down["fingerprint"]], "mutedBy": [], "silencedBy": [], "state": "suppressed",
    }  # fmt: skip
    assert hot["endsAt"] == to_rfc3339(START + 300, "milliseconds")
    assert down["receivers"] == [{"name": "b"}]
    hot2 = next(one for one in client.get("/api/v2/alerts").json() if one["labels"]["alertname"] == "Hot2")
    assert hot2["status"]["silencedBy"] == [silence_id]


def test_groups(client: Client) -> None:
    post_alerts(client, {"alertname": "Down", "node": "n1", "severity": "crit"}, {"alertname": "X"})
    groups = client.get("/api/v2/alerts/groups").json()
    assert [(one["labels"], one["receiver"]["name"], len(one["alerts"])) for one in groups] == [
        ({"alertname": "Down"}, "b", 1),
        ({"alertname": "X"}, "a", 1),
    ]
    assert len(client.get("/api/v2/alerts/groups?receiver=a").json()) == 1


def test_the_receivers_of_an_alert_in_a_group_are_those_of_the_listed_groups(client: Client) -> None:
    post_alerts(client, {"alertname": "Down", "severity": "crit", "team": "y"})

    def receivers(query: str) -> list[tuple[str, list[str]]]:
        return [
            (one["receiver"]["name"], [receiver["name"] for receiver in one["alerts"][0]["receivers"]])
            for one in client.get(f"/api/v2/alerts/groups?{query}").json()
        ]

    assert receivers("") == [("a", ["a", "b"]), ("b", ["a", "b"])]
    assert receivers("receiver=b") == [("b", ["b"])]
    assert receivers(f"receiver_matchers={quote('team=x')}") == [("b", ["b"])]
    assert receivers(f"receiver=a&receiver_matchers={quote('team=x')}") == []
    assert names(client, f"?receiver=a&receiver_matchers={quote('team=x')}") == ["Down"]


def test_alerts_are_sorted_by_fingerprint_and_groups_by_labels(client: Client) -> None:
    post_alerts(client, *({"alertname": name} for name in "CADB"))
    fingerprints = [one["fingerprint"] for one in client.get("/api/v2/alerts").json()]
    assert fingerprints == sorted(fingerprints)
    groups = [one["labels"]["alertname"] for one in client.get("/api/v2/alerts/groups").json()]
    assert groups == ["A", "B", "C", "D"]


def test_a_group_that_a_time_interval_mutes_says_so(client: Client, notifier: Notifier) -> None:
    post_alerts(client, {"alertname": "A", "team": "night"}, startsAt=to_rfc3339(START - 3600))
    [group] = client.get("/api/v2/alerts/groups").json()
    assert group["alerts"][0]["status"]["state"] == "active"  # not flushed yet
    assert notifier.flush_due() == []
    [group] = client.get("/api/v2/alerts/groups").json()
    assert group["alerts"][0]["status"] == {
        "inhibitedBy": [], "mutedBy": ["always"], "silencedBy": [], "state": "suppressed",
    }  # fmt: skip
    assert client.get("/api/v2/alerts/groups?muted=false").json() == []
    [alert] = client.get("/api/v2/alerts").json()
    assert alert["status"]["state"] == "active"  # a group is muted, not its alert, as in Alertmanager


def test_valid_alerts_are_taken_even_if_others_are_not(client: Client) -> None:
    body = [{"labels": {"alertname": "A"}}, {"labels": {"a": ""}}, {"labels": {"": "x"}}]
    answer = client.post("/api/v2/alerts", json=body)
    assert answer.status_code == 400
    assert answer.json() == 'at least one label pair required\ninvalid label set: invalid name ""'
    assert names(client) == ["A"]


@pytest.mark.parametrize(
    ("wrong", "status", "code"),
    [
        ({"labels": {"a": 1}}, 400, 400),
        ({"labels": {"a": "b"}, "startsAt": "soon"}, 400, 400),
        (7, 400, 400),
        (None, 400, 400),
        ({"annotations": {}}, 422, 602),
        ({"labels": {"a": "b"}, "generatorURL": "no URL"}, 422, 601),
    ],
)
def test_a_wrong_type_or_a_missing_field_refuses_all(
    wrong: Any, status: int, code: int, client: Client
) -> None:
    answer = client.post("/api/v2/alerts", json=[{"labels": {"alertname": "A"}}, wrong])
    assert answer.status_code == status
    assert answer.json()["code"] == code
    assert names(client) == []


def test_the_start_is_not_after_the_end_also_if_that_is_set_here(client: Client) -> None:
    for seconds, code in ((301.0, 400), (299.0, 200)):  # resolve_timeout is 5 minutes
        starts_at = to_rfc3339(START + seconds)
        assert post_alerts(client, {"alertname": "A"}, startsAt=starts_at)[0] == code
    answer = post_alerts(client, {"alertname": "B"}, startsAt=to_rfc3339(START), endsAt=to_rfc3339(START - 1))
    assert answer == (400, '"start time must be before end time"')
    assert names(client) == ["A"]


def test_a_start_that_is_not_given_is_the_end_or_now(client: Client) -> None:
    post_alerts(client, {"alertname": "A"})
    post_alerts(client, {"alertname": "B"}, endsAt=to_rfc3339(START + 60))
    found = {one["labels"]["alertname"]: one for one in client.get("/api/v2/alerts").json()}
    assert found["A"]["startsAt"] == to_rfc3339(START, "milliseconds")
    assert found["B"]["startsAt"] == found["B"]["endsAt"] == to_rfc3339(START + 60, "milliseconds")


def test_the_last_moment_of_the_year_9999_can_be_listed(client: Client) -> None:
    end = "9999-12-31T23:59:59.999999999Z"
    assert post_alerts(client, {"alertname": "A"}, endsAt=end)[0] == 200  # and so it starts then
    assert client.post("/api/v2/silences", json=silence(endsAt=end)).status_code == 200
    [alert] = client.get("/api/v2/alerts").json()
    [listed] = client.get("/api/v2/silences").json()
    assert alert["startsAt"] == alert["endsAt"] == listed["endsAt"] == "9999-12-31T23:59:59.000Z"
    [group] = client.get("/api/v2/alerts/groups").json()
    assert group["alerts"] == [alert]


def test_an_end_in_the_past_resolves(client: Client) -> None:
    post_alerts(client, {"alertname": "A"})
    post_alerts(client, {"alertname": "A"}, endsAt=to_rfc3339(START), startsAt=to_rfc3339(START - 5))
    assert names(client) == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"{}", 400),
        (b"[" * 3000, 400),
        (b'"x"', 400),
        (b"9" * 3500, 400),
        (b"null", 200),
        (b'[{"labels": {"\\ud800": "x"}}] trailing', 200),
    ],
)
def test_bodies(body: bytes, status: int, client: Client) -> None:
    headers = {"content-type": "application/json"}
    assert client.post("/api/v2/alerts", content=body, headers=headers).status_code == status


def test_a_body_must_be_declared_as_json(client: Client) -> None:
    for media_type, status in (("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("x", 400)):
        headers = {"content-type": media_type}
        assert client.post("/api/v2/alerts", content=b"[]", headers=headers).status_code == status


def test_other_methods_and_paths(client: Client) -> None:
    answer = client.request("PUT", "/api/v2/alerts")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.json() == {"code": 405, "message": "method PUT is not allowed, but [GET,POST] are"}
    path = "/alertmanager/api/v2/nothing"
    assert client.get(path).json() == {"code": 404, "message": f"path {path} was not found"}
    assert client.get("/api/v2/nothing").status_code == 404
    assert client.get("/api/v2/alerts", headers={"accept": "text/html"}).status_code == 406


def test_limits_on_what_clients_send(client: Client) -> None:
    before = LIMITS_REACHED.counts()
    code, text = post_alerts(client, {"alertname": "A", "long": "x" * 1000})
    assert code == 400
    assert "max_alert_bytes" in text
    assert post_alerts(client, *({"alertname": f"A{n}"} for n in range(5)))[0] == 503, "one is for our own"
    assert client.post("/api/v2/alerts", content=b" " * 5000).status_code == 413
    many, headers = b"[" + b"[]," * 1000 + b"[]]", {"content-type": "application/json"}
    assert client.post("/api/v2/alerts", content=many, headers=headers).status_code == 400
    after = LIMITS_REACHED.counts()
    for name in ("max_alert_bytes", "max_alerts", "max_alerts_request_bytes", "max_alerts_request_values"):
        assert after[name] == before[name] + 1


def test_silences(client: Client) -> None:
    answer = client.post("/api/v2/silences", json=silence())
    silence_id = answer.json()["silenceID"]
    found = client.get(f"/api/v2/silence/{silence_id}").json()
    assert found["status"] == {"state": "active"}
    assert found["matchers"] == [{"isEqual": True, "isRegex": False, "name": "node", "value": "n1"}]
    later = client.post("/api/v2/silences", json=silence(startsAt=to_rfc3339(START + 30))).json()["silenceID"]
    assert [one["id"] for one in client.get("/api/v2/silences").json()] == [silence_id, later]
    assert [one["id"] for one in client.get("/api/v2/silences?active=false").json()] == [later]
    assert client.get(f"/api/v2/silences?filter={quote('node=n2')}").json() == []
    assert client.delete(f"/api/v2/silence/{silence_id}").status_code == 200
    assert client.get(f"/api/v2/silence/{silence_id}").json()["status"] == {"state": "expired"}
    for query, ids in (
        ("expired=false", [later]),
        ("pending=false", [silence_id]),
        ("pending=false&expired=false", []),
        ("active=false", [later, silence_id]),
    ):
        assert [one["id"] for one in client.get(f"/api/v2/silences?{query}").json()] == ids, query


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"matchers": []}, 422),
        ({"matchers": [{"name": "a", "value": "(", "isRegex": True}]}, 400),
        ({"matchers": [{"name": "a", "value": "x"}]}, 422),
        ({"comment": None}, 422),
        ({"startsAt": None}, 422),
        ({"endsAt": "never"}, 400),
        ({"endsAt": to_rfc3339(START - 5), "startsAt": to_rfc3339(START - 9)}, 400),
        ({"id": "unknown"}, 404),
        ({"id": 7}, 400),
    ],
)
def test_wrong_silences(wrong: dict[str, Any], code: int, client: Client) -> None:
    assert client.post("/api/v2/silences", json=silence(**wrong)).status_code == code


def test_a_full_disk_is_no_mistake_of_the_client(tmp_path: Path) -> None:
    """The sender of a silence may try it again: 503, not 400."""
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: a}\nreceivers: [{name: a}]\n")
    state = NotifyState(Path("/proc/gpuscope/n.sqlite"))  # no folder can be made there, not even by root
    notifier = Notifier(load_alerting(tmp_path / "alertmanager.yml"), {}, ManualClock(), state, Limits())
    with Client(Router(AlertmanagerApi(notifier, ManualClock(), Limits()).routes())) as full:
        answer = full.post("/api/v2/silences", json=silence())
        assert (answer.status_code, "could not be stored" in answer.text) == (503, True)


def test_changes_of_silences_are_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpuscope.notify")
    made = client.post("/api/v2/silences", json=silence(createdBy="mallory\n" * 100)).json()["silenceID"]
    client.delete(f"/api/v2/silence/{made}")
    added, ended = caplog.messages
    assert added.startswith(f"silence {made} added by ")
    assert "\n" not in added
    assert ended.startswith(f"silence {made} ended by ")


def test_unknown_silences_are_not_found(client: Client) -> None:
    unknown = "13db969f-0ea0-40b8-b51d-b731c5010945"
    for method in ("GET", "DELETE"):
        assert client.request(method, f"/api/v2/silence/{unknown}").status_code == 404
        answer = client.request(method, "/api/v2/silence/x")
        assert answer.status_code == 422
        assert answer.json() == {"code": 601, "message": 'silenceID in path must be of type uuid: "x"'}


@pytest.mark.parametrize("query", ["filter=%28", "receiver=(", "filter=%ff", "&".join(["a=1"] * 200)])
def test_wrong_parameters(query: str, client: Client) -> None:
    assert client.get(f"/api/v2/alerts?{query}").status_code == 400


def test_status_shows_no_secret(client: Client) -> None:
    status = client.get("/alertmanager/api/v2/status")
    assert "s3cret" not in status.text
    assert status.json()["config"]["original"].startswith("route:")
    assert client.get("/api/v2/receivers").json() == [
        {"name": "a", "labels": {"name": "a"}}, {"name": "b", "labels": {"team": "x", "name": "b"}},
    ]  # fmt: skip
    assert client.get("/api/notify").json()["channels"][0]["up"] is None
