"""Sending to Alertmanagers: the configuration, the queue, and receivers that fail or hang."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.discovery import Discovery
from gpuscope.history.scrape.job_options import DnsProviderConfig
from gpuscope.judge.notify.alertmanager_config import (
    AlertingSection,
    AlertmanagerGroup,
    read_alerting,
)
from gpuscope.judge.notify.alertmanager_sender import (
    AlertmanagerDiscovery,
    AlertmanagerQueue,
    AlertmanagerSender,
    encode_alerts,
    milliseconds_text,
)
from gpuscope.judge.rules.alert_state import Alert
from tests.rules.alertmanager_sink import alertmanager_sink
from tests.scrape.exporters import serving, status, text
from tests.scrape.fake_kubernetes import serving_kubernetes
from tests.scrape.kubernetes_scene import pod
from tests.waiting import wait_for


def alert(name: str, **more: str) -> Alert:
    labels = tuple(sorted({"alertname": name, **more}.items()))
    return Alert(labels, (), 1_800_000_000.5036, None, "http://x/<&>", 1_800_000_240.0)


def queue(url: str, capacity: int = 10_000) -> AlertmanagerQueue:
    return AlertmanagerQueue(f"http://{url}/api/v2/alerts", HttpConfig(), 5.0, capacity)


def group_of(*addresses: str) -> AlertmanagerGroup:
    return AlertmanagerGroup(static=(TargetGroup(addresses),))


def send_to(
    sender: AlertmanagerSender, *groups: AlertmanagerGroup, external_labels: Mapping[str, str] | None = None
) -> None:
    sender.use(AlertingSection(groups), external_labels or {}, [Discovery(group) for group in groups])


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
                    "sigv4": {"region": "x"},
                }
            ],
        },
        "p.yml",
        tmp_path,
    )
    (group,) = section.alertmanagers
    assert group.urls_of(Discovery(group).groups()) == (
        ["https://a:9093/am/api/v2/alerts", "https://c:9093/am/api/v2/alerts"],
        ["https://b:9093/am/api/v2/alerts"],
    )
    assert (group.timeout_seconds, group.http.headers[0][0]) == (3.0, "authorization")
    assert group.providers == (DnsProviderConfig(("x",)),)
    assert section.warnings == ("p.yml: alerting: alertmanagers[0]: sigv4 is not supported and ignored",)
    assert read_alerting(None, "p.yml", tmp_path) == AlertingSection()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"api_version": "v1"}, "use v2"),
        ({"nonsense": 1}, "nonsense"),
        ({"timeout": "x"}, "duration"),
        (
            {"consul_sd_configs": [{"server": "x"}]},
            r"p.yml: alerting: alertmanagers\[0\]: consul_sd_configs: is not supported; use static_configs, "
            "file_sd_configs, dns_sd_configs, http_sd_configs, kubernetes_sd_configs",
        ),
        ({"kubernetes_sd_configs": [{"role": "service"}]}, "role: service is not supported; use one of"),
    ],
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
        sender = AlertmanagerSender(Limits(), start)
        send_to(sender, group_of("127.0.0.1:1", sink.url), external_labels={"cluster": "c"})
        sender.take([alert("A", cluster="own"), alert("B")])
        while len(sink.alerts()) < 2:
            assert not released.wait(0.01)
        assert [one["labels"].get("cluster") for one in sink.alerts()] == ["own", "c"]
        families = {family.name: family.samples for family in sender.families()}
        assert [value for _, value in families["prometheus_notifications_queue_length"]] == [2, 0]
        sender.stop()


def test_a_reload_keeps_the_queue_of_an_unchanged_alertmanager() -> None:
    started: list[AlertmanagerQueue] = []
    sender = AlertmanagerSender(Limits(), started.append)
    kept, other, new = (group_of(name) for name in ("a:1", "b:1", "c:1"))
    send_to(sender, kept, other)
    sender.take([alert("A")])
    send_to(sender, new, kept)
    a, b, c = (f"http://{name}/api/v2/alerts" for name in ("a:1", "b:1", "c:1"))
    assert [one.url for one in started] == [a, b, c]
    assert len(started[0]) == 1, "its alerts still wait"
    sender.take([alert("B")])
    assert [len(one) for one in started] == [2, 1, 1]
    assert sender.urls() == ([c, a], [])


def test_more_alertmanagers_than_the_limit_get_nothing(caplog: pytest.LogCaptureFixture) -> None:
    before = LIMITS_REACHED.counts()["alertmanagers_max"]
    started: list[AlertmanagerQueue] = []
    sender = AlertmanagerSender(replace(Limits(), alertmanagers_max=3), started.append)
    send_to(sender, group_of("a:1", "b:1"), group_of("c:1", "d:1"))
    assert len(started) == 3
    assert LIMITS_REACHED.counts()["alertmanagers_max"] == before + 1
    assert "more than 3: the others get no alerts (alertmanagers_max)" in caplog.text


@contextmanager
def discovering(entry: dict[str, object]) -> Iterator[AlertmanagerSender]:
    """Sends to the Alertmanagers of this entry, with threads as in a server."""
    threads: list[threading.Thread] = []

    def start(run: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=run))
        threads[-1].start()

    with ThreadPoolExecutor(1) as workers:
        sender = AlertmanagerSender(Limits(), lambda queue: start(queue.run))
        discovery = AlertmanagerDiscovery(sender, workers, Limits(), min_update_seconds=0.0)
        discovery.use(read_alerting({"alertmanagers": [entry]}, "p.yml", Path()), {})
        assert discovery.is_needed
        start(discovery.run)
        try:
            yield sender
        finally:
            discovery.stop()
            sender.stop()
            for thread in threads:
                thread.join()


def url_of(address: str) -> str:
    return f"http://{address}/api/v2/alerts"


def test_alerts_reach_an_alertmanager_that_http_discovery_finds() -> None:
    with alertmanager_sink() as first, alertmanager_sink() as second:
        pages = {"/sd": text(json.dumps([{"targets": [first.url]}]), "application/json")}
        with serving(pages) as address:
            config = {"url": f"http://{address}/sd", "refresh_interval": "100ms"}
            with discovering({"http_sd_configs": [config]}) as sender:
                wait_for(lambda: sender.urls()[0] == [url_of(first.url)], "the first is found")
                sender.take([alert("A")])
                wait_for(lambda: first.alerts(), "the alert arrived")
                pages["/sd"] = text(json.dumps([{"targets": [second.url]}]), "application/json")
                wait_for(lambda: sender.urls()[0] == [url_of(second.url)], "the second is found")
                sender.take([alert("B")])
                wait_for(lambda: second.alerts(), "the alert arrived")
                pages["/sd"] = status(503)
                assert sender.urls()[0] == [url_of(second.url)]
    assert [one["labels"]["alertname"] for one in (*first.alerts(), *second.alerts())] == ["A", "B"]


def test_alertmanagers_are_found_in_kubernetes() -> None:
    with serving_kubernetes() as server:
        server.put("pods", pod("alertmanager-0", "10.0.0.1", namespace="monitoring"))
        server.put("pods", pod("other", "10.0.0.2", namespace="ml"))
        entry: dict[str, object] = {
            "path_prefix": "/am",
            "kubernetes_sd_configs": [{"role": "pod", "api_server": f"http://{server.address}"}],
            "relabel_configs": [
                {"source_labels": ["__meta_kubernetes_namespace"], "regex": "monitoring", "action": "keep"},
                {
                    "source_labels": ["__meta_kubernetes_pod_container_port_number"],
                    "regex": "9400",
                    "action": "keep",
                },
            ],
        }
        with discovering(entry) as sender:
            wait_for(lambda: sender.urls()[0], "the pod is found")
            assert sender.urls()[0] == ["http://10.0.0.1:9400/am/api/v2/alerts"]
            server.put("pods", pod("alertmanager-1", "10.0.0.3", namespace="monitoring"))
            wait_for(lambda: len(sender.urls()[0]) == 2, "the second pod is found")
