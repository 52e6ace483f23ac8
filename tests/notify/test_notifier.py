"""The notifier on a clock that the test moves: failures, limits, reload, ten thousand alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alert_matchers import parse_matchers
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.default_alerting import default_alerting
from gpuscope.judge.notify.notifier import Delivery, Notifier
from gpuscope.judge.notify.notify_state import FILE_NAME, NotifyState
from gpuscope.judge.notify.send_loop import DeliveryQueue
from gpuscope.judge.notify.silences import Silence
from gpuscope.judge.rules.alert_state import Alert
from tests.fakes import Keywords
from tests.notify.memory_state import MemoryState
from tests.notify.timeline import START, ManualClock, advance, recording_channels

CONFIG = """
route:
  receiver: hook
  group_by: [alertname]
  group_wait: 1s
  group_interval: 10s
  repeat_interval: 1h
receivers:
- name: hook
  webhook_configs: [{url: 'http://127.0.0.1:1/hook'}]
"""


def firing(name: str = "A", *, resolved: bool = False, **labels: str) -> Alert:
    pairs = {"alertname": name, **labels}
    return Alert(tuple(sorted(pairs.items())), (), START, START + 5 if resolved else None, "", START + 1e6)


class Bench:
    """A notifier, its clock, and what it sends."""

    def __init__(
        self,
        folder: Path,
        *,
        config: str = CONFIG,
        limits: Limits | None = None,
        state: bool = False,
        clock: ManualClock | None = None,
    ):
        self.path = folder / "alertmanager.yml"
        self.path.write_text(config)
        self.config = load_alerting(self.path)
        self.clock = clock or ManualClock()
        self.requests: list[tuple[float, str, bytes]] = []
        self.state = NotifyState(folder / FILE_NAME) if state else None
        self.channels = recording_channels(self.config, self.clock, self.requests)
        self.notifier = Notifier(
            self.config,
            self.channels,
            self.clock,
            self.state or MemoryState(),
            limits or Limits(),
            kept_silences=self.state.silences() if self.state else (),
            kept_log=self.state.entries() if self.state else (),
            kept_history=self.state.history() if self.state else (),
        )

    def advance(self, seconds: float) -> None:
        advance(self.notifier, self.clock, START + seconds)

    def due(self, seconds: float) -> list[Delivery]:
        self.clock.time = START + seconds
        return self.notifier.flush_due()

    def told(self) -> list[list[str]]:
        return [
            [one["labels"]["alertname"] for one in json.loads(body)["alerts"]] for _, _, body in self.requests
        ]


class SteppedClock(ManualClock):
    """A wall clock that can be set, beside one that cannot."""

    ahead = 0.0

    def now(self) -> float:
        return self.time + self.ahead


def test_a_clock_that_is_set_forward_for_a_while_loses_no_silence(tmp_path: Path) -> None:
    clock = SteppedClock()
    bench = Bench(tmp_path, state=True, clock=clock)
    silence = Silence(parse_matchers("alertname=A"), START, START + 86_400, "ann", "planned work")
    kept = bench.notifier.silences.set(silence, clock.now())
    bench.notifier.flush_due()
    clock.ahead = 40 * 86_400.0
    for _ in range(20):
        clock.time += 60.0
        bench.notifier.flush_due()
    clock.ahead = 0.0
    bench.notifier.flush_due()
    bench.notifier.put([firing()])
    bench.advance(3600)
    assert bench.told() == [], "still silenced"
    again = Bench(tmp_path, state=True)
    assert [one.id for one in again.notifier.silences.all()] == [kept]


def test_a_failed_message_is_due_again_at_the_next_flush(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing()])
    [delivery] = bench.due(1.0)
    assert bench.due(11.0) == []  # still being sent: no second message overtakes it
    bench.notifier.finished(delivery, SendError("no", may_retry=True))
    [again] = bench.due(11.0)
    assert again.flush_number == 2
    assert again.notification.reason == "first notification"
    assert bench.notifier.delivered_at([firing().labels]) == {}, "nobody has got it yet"
    bench.notifier.finished(again, None, again.notification.fingerprints)
    delivered = {firing().labels: START + 11.0}
    assert bench.notifier.delivered_at([firing().labels, firing("other").labels]) == delivered
    assert bench.due(30.0) == []


def test_an_alert_counts_as_delivered_if_a_message_had_it_in_full(tmp_path: Path) -> None:
    """The first message has GPU 0 in full; the second one, about both GPUs, is cut."""
    bench = Bench(tmp_path, state=True)
    bench.notifier.put([firing(gpu="0")])
    [first] = bench.due(1.0)
    bench.notifier.finished(first, None, first.notification.fingerprints)
    bench.notifier.put([firing(gpu="0"), firing(gpu="1")])
    [second] = bench.due(20.0)
    assert len(second.notification.alerts) == 2
    bench.notifier.finished(second, None)
    asked = [firing(gpu="0").labels, firing(gpu="1").labels]
    told = bench.notifier.delivered_at(asked)
    assert told == {firing(gpu="0").labels: START + 1.0}
    assert Bench(tmp_path, state=True).notifier.delivered_at(asked) == told
    assert bench.due(40.0) == [], "it was sent all the same"


def resolution_being_sent(bench: Bench) -> Delivery:
    """An alert fired, was notified, and resolved: the message about that."""
    bench.notifier.put([firing()])
    bench.advance(2.0)
    bench.clock.time = START + 6.0
    bench.notifier.put([firing(resolved=True)])
    [delivery] = bench.due(11.1)
    return delivery


def test_a_resolution_that_could_not_be_sent_is_not_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    delivery = resolution_being_sent(bench)
    assert delivery.notification.reason == "all alerts resolved"
    bench.notifier.finished(delivery, SendError("no", may_retry=False))
    [again] = bench.due(21.2)
    bench.notifier.finished(again, None)
    assert bench.notifier.next_flush_at() is None
    assert bench.notifier.group_statuses() == []


def test_an_alert_that_fires_again_while_its_resolution_is_sent_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    delivery = resolution_being_sent(bench)
    bench.notifier.put([Alert((("alertname", "A"),), (), START + 11, None, "", START + 1e6)])
    bench.notifier.finished(delivery, None)
    [again] = bench.due(21.2)
    assert again.notification.status == "firing"


def test_a_defect_silences_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing("A"), firing("B"), firing("C")])

    def fail_for_b(labels: Mapping[str, str], now: float, fingerprint: str) -> list[str]:
        return [] if labels["alertname"] != "B" else [labels["defect"]]

    with monkeypatch.context() as patch:
        patch.setattr(bench.notifier.silences, "silenced_by", fail_for_b)
        told = bench.due(1.0)
    assert [one.notification.group_labels["alertname"] for one in told] == ["A", "C"]
    assert 'alert group {}:{alertname="B"}' in caplog.text
    [delivery] = bench.due(11.0)
    assert delivery.notification.group_labels == {"alertname": "B"}


def test_a_clock_that_is_set_back_delays_no_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing("A"), firing("B")])
    bench.advance(5.0)
    bench.notifier.put([firing("B", node="n2")])
    [being_sent] = bench.due(11.0)
    bench.clock.time = START - 3600 + 11.0
    bench.notifier.put([firing("A", node="n2"), firing("B", node="n3")])
    bench.notifier.finished(being_sent, None)
    assert bench.notifier.next_flush_at() == pytest.approx(START - 3600 + 21.0)  # group_interval is 10 s
    told = [one.notification.group_labels["alertname"] for one in bench.due(-3600 + 21.1)]
    assert sorted(told) == ["A", "B"]


ROUTE_LABELS = """
route:
  receiver: hook
  group_by: [alertname]
  group_wait: 1s
  labels: {team: 'of {{ .GroupLabels.alertname }}', place: rack 7}
  routes:
  - labels:
      count: '{{ len .Alerts }} {{ .NotificationReason }}'
      both: '{{ routeLabels "team" }}, {{ routeLabels "place" }}'
      broken: '{{ index .Alerts 9 }}'
      loop: '{{ routeLabels "pool" }}'
      pool: '{{ routeLabels "loop" }}'
receivers:
- name: hook
  webhook_configs: [{url: 'http://127.0.0.1:1/hook'}]
"""


def test_labels_of_a_route_are_inherited_and_expanded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path, config=ROUTE_LABELS)
    bench.notifier.put([firing(node="n1"), firing(node="n2")])
    expanded = {"team": "of A", "place": "rack 7", "count": "2 unknown", "both": "of A, rack 7"}
    [group] = bench.notifier.group_statuses()
    assert group.route_labels == expanded
    bench.advance(2.0)
    [(_, _, body)] = bench.requests
    assert json.loads(body)["routeLabels"] == expanded
    assert "route label cycle detected: loop -> pool -> loop" in caplog.text


def test_a_label_of_a_route_that_is_no_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'broken: .*"first" not defined'):
        Bench(tmp_path, config=ROUTE_LABELS.replace("index", "first"))


def test_a_second_gpu_that_is_lost_is_told_although_gpus_are_missing() -> None:
    config = default_alerting(["http://127.0.0.1:1/hook"])
    clock = ManualClock()
    requests: list[tuple[float, str, bytes]] = []
    notifier = Notifier(config, recording_channels(config, clock, requests), clock, MemoryState(), Limits())
    node: Keywords = {"instance": "n1:9400", "severity": "critical"}
    notifier.put([firing("GpusMissing", **node), firing("GpuNotAnswering", uuid="GPU-1", **node)])
    advance(notifier, clock, START + 60)
    notifier.put([firing("GpuNotAnswering", uuid="GPU-2", **node)])
    advance(notifier, clock, START + 600)
    told = [one["labels"].get("uuid") for *_, body in requests for one in json.loads(body)["alerts"]]
    assert "GPU-2" in told


def test_ten_thousand_alerts_at_once_are_one_message_and_none_is_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.take([firing(gpu=str(n)) for n in range(10_000)])
    bench.advance(2.0)
    [told] = bench.told()
    assert len(told) == 10_000
    assert len(bench.notifier.alert_statuses()) == 10_000


def test_groups_are_bounded_and_what_still_fires_gets_its_turn(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=Limits(max_alert_groups=2))
    before = LIMITS_REACHED.counts()["max_alert_groups"]
    bench.notifier.put([firing("A"), firing("B"), firing("C"), firing("D", resolved=True)])
    assert LIMITS_REACHED.counts()["max_alert_groups"] == before + 2
    bench.advance(6.0)
    assert sorted(map(tuple, bench.told())) == [("A",), ("B",)]
    bench.notifier.put([firing("A", resolved=True)])
    bench.advance(13.0)  # A's resolution is sent and its group goes: C, which still fires, takes its place
    assert ["C"] in bench.told()
    assert ["D"] not in bench.told()


def test_alerts_are_bounded_and_room_comes_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=Limits(max_alerts=2))
    before = LIMITS_REACHED.counts()["max_alerts"]
    assert bench.notifier.put([firing("A"), firing("B"), firing("C")]) == 1
    assert LIMITS_REACHED.counts()["max_alerts"] == before + 1
    bench.clock.time = START + 6.0
    assert bench.notifier.put([firing("A", resolved=True), firing("C")]) == 0


def test_clients_cannot_shut_out_the_alerts_of_our_own_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, limits=Limits(max_alerts=40, max_alert_groups=40))
    for round_number in range(20):
        refused = bench.notifier.put([firing(f"flood {round_number} {number}") for number in range(10)])
        assert refused == (0 if round_number < 3 else 10)
    bench.notifier.take([firing(f"own {number}") for number in range(10)])
    bench.advance(6.0)
    told = {name for names in bench.told() for name in names}
    assert {f"own {number}" for number in range(10)} <= told
    lines = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
    assert lines == ["alerts of clients: more than 30 alerts; new ones are refused (max_alerts)"]
    families = {family.name: family for family in bench.notifier.families()}
    [(labels, count)] = families["gpuscope_notify_refused_alerts_total"].samples
    assert (labels.pairs, count) == ((("sender", "clients"),), 170)
    # A client that repeats one of our alerts does not take it into its own share.
    assert bench.notifier.put([firing("own 1")]) == 0


def test_clients_cannot_use_all_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = Bench(tmp_path, limits=Limits(max_alert_groups=8))
    bench.notifier.put([firing(f"flood {number}") for number in range(100)])
    bench.notifier.take([firing("own")])
    bench.advance(6.0)
    assert ["own"] in bench.told()
    assert "groups of alerts: there are 6; alerts that need another one wait (max_alert_groups)" in caplog.text
    ended = [firing(f"flood {number}", resolved=True) for number in range(100)]
    bench.notifier.put(ended)
    bench.advance(40.0)
    assert "groups of alerts: works again" in caplog.text


def test_what_the_rule_engine_sends_is_bounded_before_it_is_looked_at(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=Limits(max_alerts=2))
    before = LIMITS_REACHED.counts()["max_alerts"]
    for name in "ABCD":
        bench.notifier.take([firing(name)])
    assert LIMITS_REACHED.counts()["max_alerts"] == before + 2
    assert {one.alert.labels["alertname"] for one in bench.notifier.alert_statuses()} == {"C", "D"}


def test_a_reload_keeps_alerts_silences_and_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing()])
    [delivery] = bench.due(1.0)
    bench.notifier.use(bench.config, bench.channels)  # while a message is on its way
    bench.notifier.finished(delivery, None)
    bench.advance(60.0)
    assert bench.told() == []  # the new group knows from the log that it was told
    assert len(bench.notifier.alert_statuses()) == 1
    bench.notifier.reload_failed("alertmanager.yml: line 3")
    families = {family.name: family for family in bench.notifier.families()}
    assert [value for _, value in families["alertmanager_config_last_reload_successful"].samples] == [0]


def test_a_restart_repeats_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    first = Bench(tmp_path, state=True)
    first.notifier.put([firing("A"), firing("B")])
    first.advance(2.0)
    assert len(first.requests) == 2
    del first  # as kill -9: nothing is closed
    second = Bench(tmp_path, state=True)
    second.clock.time = START + 60
    second.notifier.put([firing("A"), firing("B", resolved=True), firing("C")])
    advance(second.notifier, second.clock, START + 62)
    assert sorted(map(tuple, second.told())) == [("B",), ("C",)]


def test_maintenance_forgets_what_is_old(tmp_path: Path) -> None:
    bench = Bench(tmp_path, state=True)
    bench.notifier.put([firing(resolved=True)])
    bench.clock.time = START + 6
    bench.notifier.put([firing("B")])
    bench.advance(20.0)
    bench.notifier.put([Alert((("alertname", "B"),), (), START, START + 21, "")])
    bench.advance(40.0)
    assert bench.state is not None
    assert len(bench.state.entries()) == 1
    bench.clock.time = START + 7300
    bench.notifier.flush_due()
    assert bench.state.entries() == []


@pytest.mark.parametrize("may_retry", [True, False])
def test_attempts_back_off_until_the_deadline(may_retry: bool, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing()])
    [delivery] = bench.due(1.0)
    queue = DeliveryQueue(jitter=lambda: 0.5)
    queue.add(delivery, 0.0)
    pauses, now = [], 0.0
    for _ in range(100):
        attempt = queue.take(now)
        assert attempt is not None
        if not queue.failed(attempt, SendError("no", may_retry=may_retry), now):
            break
        wait = queue.seconds_to_next(now)
        assert wait is not None
        pauses.append(wait)
        now += wait
    assert pauses == (pytest.approx([0.5, 0.75, 1.125, 1.6875, 2.53125]) if may_retry else [])
    assert len(queue) == 0


def test_a_message_that_waits_for_its_next_attempt_delays_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing("A"), firing("B")])
    first, second = bench.due(1.0)
    queue = DeliveryQueue(jitter=lambda: 0.5)
    queue.add(first, 0.0)
    attempt = queue.take(0.0)
    assert attempt is not None
    queue.failed(attempt, SendError("no", may_retry=True), 0.0)
    queue.add(second, 0.0)
    ready = queue.take(0.0)
    assert ready is not None
    assert ready.delivery is second


def test_the_shipped_configuration_sends_a_heartbeat_each_minute(tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[2] / "deploy/prometheus/alertmanager.yml").read_text()
    hook = "    webhook_configs: [{url: 'http://127.0.0.1:1/beat', send_resolved: false}]"
    path = tmp_path / "alertmanager.yml"
    path.write_text(re.sub(r"    # webhook_configs: .*dead-man.*", hook, shipped))
    config, clock, requests = load_alerting(path), ManualClock(), list[tuple[float, str, bytes]]()
    notifier = Notifier(config, recording_channels(config, clock, requests), clock, MemoryState(), Limits())
    notifier.put([firing("Watchdog")])
    advance(notifier, clock, START + 290)
    assert [round(at - START) for at, _, _ in requests] == [0, 60, 120, 180, 240]


def test_the_heartbeat_is_sent_each_minute_and_goes_nowhere_else() -> None:
    clock, requests = ManualClock(), list[tuple[float, str, bytes]]()
    config = default_alerting(["http://127.0.0.1:1/all"], "http://127.0.0.1:1/beat")
    channels = recording_channels(config, clock, requests)
    notifier = Notifier(config, channels, clock, MemoryState(), Limits())
    notifier.put([firing("Watchdog")])
    advance(notifier, clock, START + 200)
    assert [(round(at - START), path) for at, path, _ in requests] == [
        (0, "/beat"), (60, "/beat"), (120, "/beat"), (180, "/beat"),
    ]  # fmt: skip
