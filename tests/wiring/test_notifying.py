"""The notifier with its threads: a channel that hangs, one that fails, reload, and stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import load_settings
from gpuscope.cli.wiring.notifying import Notifying
from gpuscope.judge.notify.notification_log import Outcome
from gpuscope.judge.rules.alert_state import Alert
from tests.notify.timeline import Sink, running_sink
from tests.waiting import PATIENCE_SECONDS, wait_for

CONFIG = """
route:
  receiver: both
  group_by: [alertname]
  group_wait: 0s
  group_interval: 10s
receivers:
- name: both
  webhook_configs: [{url: 'SLOW/slow'}, {url: 'FAST/fast'}]
"""
FOREVER = 4_000_000_000.0


@pytest.fixture
def slow() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


@pytest.fixture
def fast() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


def alert(name: str) -> Alert:
    return Alert((("alertname", name),), (), 0.0, None, "", FOREVER)


def build(folder: Path, slow: Sink, fast: Sink, **flags: str) -> Notifying:
    path = folder / "alertmanager.yml"
    path.write_text(CONFIG.replace("SLOW", slow.url).replace("FAST", fast.url))
    settings = load_settings({"alerting": str(path), "data": str(folder), **flags}, {})
    return Notifying(settings, ("127.0.0.1", 9470))


def sent_count(notifying: Notifying) -> int:
    return sum(record.outcome is Outcome.SENT for record in notifying.notifier.history())


def test_a_channel_that_hangs_delays_neither_another_one_nor_evaluation(
    tmp_path: Path, slow: Sink, fast: Sink
) -> None:
    slow.delay.clear()
    with build(tmp_path, slow, fast) as notifying:
        for name in "ABC":
            notifying.notifier.take([alert(name)])  # returns although a channel hangs
        fast.wait_for(3)
        slow.delay.set()
        slow.wait_for(3)
    assert sorted(json.loads(body)["groupLabels"]["alertname"] for _, _, body in fast.requests) == [
        "A",
        "B",
        "C",
    ]


def test_a_server_error_is_retried_and_shown(tmp_path: Path, slow: Sink, fast: Sink) -> None:
    slow.answers = [500]
    with build(tmp_path, slow, fast) as notifying:
        notifying.notifier.take([alert("A")])
        slow.wait_for(2)
        fast.wait_for(1)
    assert slow.requests[0][2] == slow.requests[1][2]
    statuses = {str(key): status for key, status in notifying.notifier.channel_statuses().items()}
    assert (statuses["both/webhook[0]"].failed, statuses["both/webhook[0]"].sent) == (1, 1)
    families = {family.name: dict(family.samples) for family in notifying.families()}
    assert sum(families["alertmanager_notification_requests_failed_total"].values()) == 1
    assert sum(families["alertmanager_notifications_failed_total"].values()) == 0


def test_a_defect_in_a_sender_is_an_error_of_that_channel_only(
    tmp_path: Path, slow: Sink, fast: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifying = build(tmp_path, slow, fast)
    failed = threading.Event()

    def send(notification: object, timeout_seconds: float) -> None:
        failed.set()
        raise RuntimeError("a defect")

    sender = notifying.notifier.channels_of("both")[0].sender
    monkeypatch.setattr(sender, "send", send)
    with notifying:
        notifying.notifier.take([alert("A")])
        fast.wait_for(1)
        assert failed.wait(PATIENCE_SECONDS)
    statuses = {str(key): status for key, status in notifying.notifier.channel_statuses().items()}
    assert statuses["both/webhook[0]"].last_error == "RuntimeError: a defect"


def test_a_broken_file_is_refused_whole_and_the_old_one_stays(
    tmp_path: Path, slow: Sink, fast: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "alertmanager.yml"
    with build(tmp_path, slow, fast) as notifying:
        good = path.read_text()
        path.write_text(good.replace("group_wait: 0s", "group_weight: 0s"))
        notifying.reload()
        assert "group_weight" in notifying.notifier.reload_error
        assert "(line 5, column 3)" in notifying.notifier.reload_error
        assert notifying.notifier.reload_error in caplog.text
        notifying.notifier.take([alert("A")])
        # A reload sends again what was not logged as sent, as in Alertmanager.
        wait_for(lambda: sent_count(notifying) == 2, "A is logged as sent to both")
        path.write_text(good.replace("/fast", "/new"))
        notifying.reload()
        assert notifying.notifier.reload_error == ""
        notifying.notifier.take([alert("B")])
        fast.wait_for(2)
    assert [path for _, path, _ in fast.requests] == ["/fast", "/new"]


def test_one_source_of_channels(tmp_path: Path, slow: Sink, fast: Sink) -> None:
    for flag in ("notify", "heartbeat"):
        with pytest.raises(UsageError, match=f"--alerting and --{flag}"):
            build(tmp_path, slow, fast, **{flag: "https://x.example"})


def test_notify_urls_and_the_heartbeat(tmp_path: Path, slow: Sink, fast: Sink) -> None:
    flags = {"notify": f"{slow.url}/a,{slow.url}/b", "heartbeat": f"{fast.url}/beat", "data": str(tmp_path)}
    with Notifying(load_settings(flags, {}), ("127.0.0.1", 9470)) as notifying:
        notifying.notifier.take([alert("Watchdog"), alert("GpuHot")])
        slow.wait_for(2)
        fast.wait_for(1)
    assert sorted(path for _, path, _ in slow.requests) == ["/a", "/b"]
    [(_, path, body)] = fast.requests
    assert path == "/beat"
    assert json.loads(body)["groupKey"] == '{}/{alertname="Watchdog"}:{}'
