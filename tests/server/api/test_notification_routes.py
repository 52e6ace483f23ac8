"""`/api/notify`, `/api/notifications` and `/api/notify/test`, with the types that the page has."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.limits import Limits
from gpuscope.judge.notify.alerting_config import build_channels, load_alerting
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.serve.api.notification_routes import NotificationRoutes
from gpuscope.serve.api_types import notifications_json as types
from gpuscope.serve.http.messages import Router
from tests.notify.memory_state import MemoryState
from tests.notify.test_notifier import firing
from tests.notify.timeline import START, ManualClock, Sink, running_sink
from tests.server.client import Client

CONFIG = """
route: {receiver: ops, group_by: [alertname], group_wait: 1s, group_interval: 10s}
receivers:
- {name: ops, webhook_configs: [{url: 'SINK/s3cret'}, {url: 'http://127.0.0.1:1/s3cret'}]}
- {name: nobody}
"""


class Rig:
    def __init__(self, folder: Path, sink: Sink) -> None:
        path = folder / "alertmanager.yml"
        path.write_text(CONFIG.replace("SINK", sink.url))
        config = load_alerting(path)
        self.clock = ManualClock()
        self.notifier = Notifier(config, build_channels(config), self.clock, MemoryState(), Limits())

    def send(self, name: str, at: float) -> None:
        """One flush; the second channel refuses."""
        self.notifier.put([firing(name, node="n1")])
        self.clock.time = START + at
        for delivery in self.notifier.flush_due():
            error = SendError("refused", may_retry=False) if delivery.channel.key.position else None
            self.notifier.attempted(delivery, 0.1, error)
            self.notifier.finished(delivery, error)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


@pytest.fixture
def rig(tmp_path: Path, sink: Sink) -> Rig:
    return Rig(tmp_path, sink)


@pytest.fixture
def client(rig: Rig) -> Iterator[Client]:
    with Client(Router(NotificationRoutes(rig.notifier, rig.clock).routes())) as client:
        yield client


def check_keys(document: dict[str, Any], kind: Any) -> None:
    assert document.keys() == typing.get_type_hints(kind).keys()


def test_who_was_notified_and_which_message_failed(rig: Rig, client: Client, sink: Sink) -> None:
    rig.send("A", 1.0)
    answer = client.get("/api/notifications").json()
    check_keys(answer, types.NotificationsAnswer)
    failed, sent = answer["notifications"]
    check_keys(sent, types.NotificationJson)
    check_keys(sent["alerts"][0], types.NotifiedAlertJson)
    assert (sent["channel"], sent["sent_to"]) == ("ops/webhook[0]", sink.url.removeprefix("http://"))
    assert (sent["outcome"], sent["error"], sent["attempts"], sent["finished_at"]) == ("sent", "", 1, START + 1)
    assert (sent["status"], sent["firing"], sent["resolved"]) == ("firing", 1, 0)
    assert sent["group_labels"] == {"alertname": "A"}
    assert sent["alerts"][0]["labels"] == {"alertname": "A", "node": "n1"}
    assert (failed["outcome"], failed["error"]) == ("failed", "refused")
    assert "s3cret" not in client.get("/api/notifications").text


def test_filters_and_pages(rig: Rig, client: Client) -> None:
    for at, name in enumerate("ABC", 1):
        rig.send(name, float(at * 2))

    def ids(query: str) -> list[int]:
        return [one["id"] for one in client.get(f"/api/notifications?{query}").json()["notifications"]]

    assert ids("") == [6, 5, 4, 3, 2, 1]
    assert ids("outcome=failed") == [6, 4, 2]
    assert ids("outcome=sent&receiver=ops") == [5, 3, 1]
    assert ids("receiver=nobody") == []
    page = client.get("/api/notifications?limit=4").json()
    assert (len(page["notifications"]), page["next"]) == (4, 3)
    rest = client.get(f"/api/notifications?limit=4&before={page['next']}").json()
    assert ([one["id"] for one in rest["notifications"]], rest["next"]) == ([2, 1], None)
    fingerprint = rest["notifications"][0]["alerts"][0]["fingerprint"]
    assert ids(f"fingerprint={fingerprint}") == [2, 1]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=-1", "limit=many", "before=1e3", "outcome=lost", "a=%ff", "&".join(["a=1"] * 30)],
)
def test_wrong_parameters(query: str, client: Client) -> None:
    answer = client.get(f"/api/notifications?{query}")
    assert answer.status_code == 400
    assert answer.json()["errorType"] == "bad_data"


def test_the_state_of_channels(rig: Rig, client: Client) -> None:
    rig.send("A", 1.0)
    answer = client.get("/api/notify").json()
    check_keys(answer, types.NotifyAnswer)
    good, bad = answer["channels"]
    check_keys(good, types.ChannelJson)
    assert (good["up"], good["last_sent_at"], good["failing_since"]) == (True, START + 1, None)
    assert (bad["up"], bad["last_sent_at"], bad["failing_since"]) == (False, None, START + 1)
    assert (bad["last_error"], bad["sent_to"]) == ("refused", "127.0.0.1:1")


def test_a_test_message_goes_to_each_channel_of_a_receiver(client: Client, sink: Sink) -> None:
    answer = client.post("/api/notify/test", json={"receiver": "ops"})
    check_keys(answer.json(), types.NotifyTestAnswer)
    good, bad = answer.json()["channels"]
    check_keys(good, types.TestedChannelJson)
    assert good["error"] == ""
    assert "refused" in bad["error"]
    assert b"GpuscopeTest" in sink.requests[0][2]
    assert client.get("/api/notify/test").status_code == 405


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"receiver": 7}', 400),
        (b"x" * 20_000, 400),
        (b'{"receiver": "nobody"}', 404),
    ],
)
def test_wrong_tests_are_refused(body: bytes, code: int, client: Client) -> None:
    assert client.post("/api/notify/test", content=body).status_code == code
