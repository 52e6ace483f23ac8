"""Sending to Alertmanagers: the configuration, the queue, and receivers that fail or hang."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gpuscope.errors import UsageError
from gpuscope.http_config import HttpConfig
from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.alertmanagers.alertmanager_config import AlertingSection, AlertmanagerGroup, read_alerting
from gpuscope.notify.alertmanagers.alertmanager_queue import AlertmanagerQueue, encode_alerts, milliseconds_text
from gpuscope.notify.alertmanagers.alertmanager_sender import AlertmanagerSender
from gpuscope.rules.alert import Alert
from tests.rules.alertmanager_sink import alertmanager_sink


def alert(name: str, **more: str) -> Alert:
    labels = tuple(sorted({"alertname": name, **more}.items()))
    return Alert(labels, (), 1_800_000_000.5036, None, "http://x/<&>", 1_800_000_240.0)


def queue(url: str, capacity: int = 10_000) -> AlertmanagerQueue:
    return AlertmanagerQueue(f"http://{url}/api/v2/alerts", HttpConfig(), 5.0, capacity)


def test_the_section_of_prometheus_yml(tmp_path: Path) -> None:
    (tmp_path / "more.yml").write_text("- targets: ['c:9093']\n")
    section = read_alerting(
        {
            "alert_relabel_configs": [{"action": "labeldrop", "regex": "replica"}],
            "alertmanagers": [
                {
                    "scheme": "https",
                    "path_prefix": "/am/",
                    "timeout": "3s",
                    "api_version": "v2",
                    "basic_auth": {"username": "u", "password": "p"},
                    "static_configs": [{"targets": ["a:9093", "b:9093", "a:9093"]}],
                    "file_sd_configs": [{"files": ["*.yml"]}],
                    "relabel_configs": [{"source_labels": ["__address__"], "regex": "b.*", "action": "drop"}],
                    "dns_sd_configs": [{"names": ["x"]}],
                }
            ],
        },
        "p.yml",
        tmp_path,
    )
    (group,) = section.alertmanagers
    assert group.urls == ("https://a:9093/am/api/v2/alerts", "https://c:9093/am/api/v2/alerts")
    assert group.dropped_urls == ("https://b:9093/am/api/v2/alerts",)
    assert (group.timeout_seconds, group.http.headers[0][0]) == (3.0, "authorization")
    assert section.warnings == (
        "p.yml: alerting: alertmanagers[0]: dns_sd_configs is not supported and ignored",
    )
    assert read_alerting(None, "p.yml", tmp_path) == AlertingSection()


@pytest.mark.parametrize(
    ("entry", "words"),
    [({"api_version": "v1"}, "use v2"), ({"nonsense": 1}, "nonsense"), ({"timeout": "x"}, "duration")],
)
def test_a_wrong_section_is_refused(entry: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_alerting({"alertmanagers": [entry]}, "p.yml", Path())


def test_the_body_is_that_of_prometheus() -> None:
    assert encode_alerts([alert("A", text="<b>&")]).decode() == (
        '[{"endsAt":"2027-01-15T08:04:00.000Z","startsAt":"2027-01-15T08:00:00.503Z",'
        '"generatorURL":"http://x/\\u003c\\u0026\\u003e",'
        '"labels":{"alertname":"A","text":"\\u003cb\\u003e\\u0026"}}]'
    )
    assert json.loads(encode_alerts([alert("\udc80")]))[0]["labels"] == {"alertname": "?"}
    assert milliseconds_text(1.9999999) == "1970-01-01T00:00:02.000Z"


def test_a_full_queue_drops_the_oldest_and_counts_the_limit() -> None:
    before = LIMITS_REACHED.counts()["alertmanager_queue_capacity"]
    with alertmanager_sink() as sink:
        waiting = queue(sink.url, capacity=300)
        waiting.put([alert(str(number)) for number in range(250)])
        waiting.put([alert(str(number)) for number in range(250, 700)])
        assert (len(waiting), waiting.dropped) == (300, 400)
        waiting.stop()
        waiting.run()  # sends what is left
        assert [len(json.loads(body)) for _, _, body in sink.requests] == [256, 44]
        assert [one["labels"]["alertname"] for one in sink.alerts()] == list(map(str, range(400, 700)))
        assert waiting.sent == 300
    assert LIMITS_REACHED.counts()["alertmanager_queue_capacity"] == before + 1


def test_a_failed_batch_is_counted_logged_once_and_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    with alertmanager_sink(status=500) as sink:
        failing = queue(sink.url)
        for _ in range(3):
            failing.send([alert("A")])
        assert (failing.sent, failing.errors, failing.dropped, len(sink.requests)) == (0, 3, 3, 3)
        sink.status = 200
        failing.send([alert("A")])
        assert failing.sent == 1
        failing.stop()
        failing.run()  # closes the connection
    assert caplog.text.count("alerts were not sent: HTTP 500") == 1


def test_one_that_hangs_does_not_delay_another() -> None:
    released = threading.Event()
    queues: list[AlertmanagerQueue] = []

    def start(one: AlertmanagerQueue) -> None:
        queues.append(one)
        if len(queues) == 2:
            threading.Thread(target=one.run, daemon=True).start()
        # The first is never run: it hangs for ever.

    with alertmanager_sink() as sink:
        sender = AlertmanagerSender(100, start)
        urls = ("http://127.0.0.1:1/api/v2/alerts", f"http://{sink.url}/api/v2/alerts")
        sender.use(AlertingSection((AlertmanagerGroup(urls),)), {"cluster": "c"})
        sender.take([alert("A", cluster="own"), alert("B")])
        while len(sink.alerts()) < 2:
            assert not released.wait(0.01)
        assert [one["labels"].get("cluster") for one in sink.alerts()] == ["own", "c"]
        families = {family.name: family.samples for family in sender.families()}
        assert [value for _, value in families["prometheus_notifications_queue_length"]] == [2, 0]
        sender.stop()


def test_a_reload_keeps_the_queue_of_an_unchanged_alertmanager() -> None:
    started: list[AlertmanagerQueue] = []
    sender = AlertmanagerSender(100, started.append)
    kept, other, new = (AlertmanagerGroup((f"http://{name}/api/v2/alerts",)) for name in ("a:1", "b:1", "c:1"))
    sender.use(AlertingSection((kept, other)), {})
    sender.take([alert("A")])
    sender.use(AlertingSection((new, kept)), {})
    assert [one.url for one in started] == [*kept.urls, *other.urls, *new.urls]
    assert len(started[0]) == 1, "its alerts still wait"
    sender.take([alert("B")])
    assert [len(one) for one in started] == [2, 1, 1]
    assert sender.urls() == ([*new.urls, *kept.urls], [])
