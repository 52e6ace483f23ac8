"""The steps of a flush on a clock that the test moves: routes, muting, the log, time limits, upkeep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.base.limits import Limits
from gpuscope.judge.notify.alert_matchers import parse_matchers
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.notification import Reason
from gpuscope.judge.notify.notification_log import LogEntry, LogKey, NotificationLog, reason_to_notify
from gpuscope.judge.notify.notifier import MAINTENANCE_SECONDS
from gpuscope.judge.notify.silences import RETENTION_SECONDS, Silence
from tests.notify.memory_state import MemoryState
from tests.notify.test_notifier import CONFIG, Bench, firing
from tests.notify.timeline import START


def test_a_route_without_options_has_alertmanagers_defaults(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text("route: {receiver: r}\nreceivers: [{name: r}]\n")
    config = load_alerting(path)
    route = config.route
    assert (route.group_wait, route.group_interval, route.repeat_interval) == (30.0, 300.0, 14400.0)
    assert (route.group_by, route.groups_by_all, config.resolve_timeout) == (frozenset(), False, 300.0)


INHERITED = """
route:
  receiver: r
  group_by: ['...']
  group_wait: 1s
  group_interval: 2s
  repeat_interval: 3s
  labels: {team: ml}
  routes:
  - matchers: [a=b]
    continue: true
    mute_time_intervals: [t]
    active_time_intervals: [t]
    routes: [{}, {receiver: other, group_by: [x], group_wait: 4s, group_interval: 5s, repeat_interval: 6s}]
time_intervals: [{name: t}]
receivers: [{name: r}, {name: other}]
"""


def test_a_child_inherits_all_but_matchers_continue_and_time_intervals(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(INHERITED)
    [parent] = load_alerting(path).route.routes
    plain, changed = parent.routes
    assert replace(plain, key="", id="") == replace(
        parent, key="", id="", matchers=(), continues=False, mute_time_intervals=(), active_time_intervals=(),
        routes=(),
    )  # fmt: skip
    assert (changed.receiver, changed.group_by, changed.groups_by_all) == ("other", {"x"}, False)
    assert (changed.group_wait, changed.group_interval, changed.repeat_interval) == (4.0, 5.0, 6.0)
    assert plain.id != changed.id  # although their keys are equal
    assert plain.key == changed.key == '{}/{a="b"}/{}'


A, B = frozenset({"a"}), frozenset({"b"})
NOTHING = frozenset[str]()


@pytest.mark.parametrize(
    ("last", "firing", "resolved", "sends_resolved", "age", "reason"),
    [
        (None, A, NOTHING, True, 0, Reason.FIRST),
        (None, NOTHING, A, True, 0, Reason.NONE),
        ((A, NOTHING), A, NOTHING, True, 100, Reason.NONE),
        ((A, NOTHING), A, NOTHING, True, 101, Reason.REPEAT),
        ((A, NOTHING), A | B, NOTHING, True, 0, Reason.NEW_ALERTS),
        ((A, NOTHING), B, A, True, 0, Reason.NEW_ALERTS),
        ((NOTHING, A), A, NOTHING, True, 0, Reason.FIRST),
        ((A | B, NOTHING), A, NOTHING, True, 0, Reason.NONE),
        ((A | B, NOTHING), A, B, True, 0, Reason.SOME_RESOLVED),
        ((A | B, NOTHING), A, B, False, 0, Reason.NONE),
        ((A, B), A, B, True, 0, Reason.NONE),
        ((A, NOTHING), NOTHING, A, True, 0, Reason.ALL_RESOLVED),
        ((A, NOTHING), NOTHING, A, False, 0, Reason.ALL_RESOLVED),
        ((NOTHING, A), NOTHING, A, True, 1000, Reason.NONE),
        ((NOTHING, A), NOTHING, A | B, True, 0, Reason.NONE),
    ],
)
def test_when_another_message_is_due(
    last: tuple[frozenset[str], frozenset[str]] | None,
    firing: frozenset[str],
    resolved: frozenset[str],
    sends_resolved: bool,
    age: float,
    reason: Reason,
) -> None:
    entry = None if last is None else LogEntry(START - age, START + 1e6, *last)
    found = reason_to_notify(
        entry, firing, resolved, sends_resolved=sends_resolved, repeat_interval=100, now=START
    )
    assert found is reason


@pytest.mark.parametrize(("repeat_interval", "kept"), [(3600.0, 7200.0), (1e6, 120 * 3600.0)])
def test_an_entry_of_the_log_is_kept_for_two_repetitions_at_most_five_days(
    repeat_interval: float, kept: float
) -> None:
    log, key = NotificationLog(MemoryState()), LogKey("{}:{}", "r", "webhook", 0)
    log.set(key, A, NOTHING, repeat_interval, START)
    log.forget_expired(START + kept - 1)
    assert log.get(key) is not None
    log.forget_expired(START + kept)
    assert log.get(key) is None


@pytest.mark.parametrize(("group_interval", "seconds"), [("10m", 600.0), ("10s", 10.0), ("1s", 10.0)])
def test_a_message_may_be_tried_until_the_next_flush(
    group_interval: str, seconds: float, tmp_path: Path
) -> None:
    config = CONFIG.replace("group_interval: 10s", f"group_interval: {group_interval}")
    bench = Bench(tmp_path, config=config)
    bench.notifier.put([firing()])
    [delivery] = bench.due(1.0)
    assert delivery.timeout_seconds == seconds


def test_a_failure_of_one_channel_repeats_only_its_own_message(tmp_path: Path) -> None:
    hook = "{url: 'http://127.0.0.1:1/hook'}"
    bench = Bench(tmp_path, config=CONFIG.replace(hook, f"{hook}, {hook}"))
    bench.notifier.put([firing()])
    first, second = bench.due(1.0)
    bench.notifier.finished(first, None)
    bench.notifier.finished(second, SendError("no", may_retry=False))
    [again] = bench.due(11.0)
    assert again.channel.key == second.channel.key


MUTED = """
route:
  receiver: hook
  group_by: [alertname]
  group_wait: 1s
  group_interval: 10s
  routes:
  - {matchers: [when=always], mute_time_intervals: [never, always]}
  - {matchers: [when=never], active_time_intervals: [never], mute_time_intervals: [always]}
inhibit_rules: [{source_matchers: [alertname=Source], target_matchers: [inhibited=yes]}]
time_intervals:
- {name: always, time_intervals: [{}]}
- {name: never, time_intervals: [{years: ['1999']}]}
receivers:
- name: hook
  webhook_configs: [{url: 'http://127.0.0.1:1/hook'}]
"""


def silence(matchers: str, seconds: float = 3600.0) -> Silence:
    return Silence(parse_matchers(matchers), START, START + seconds, "me", "why")


def test_the_first_of_inhibition_active_time_mute_time_and_silence_counts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config=MUTED)
    bench.notifier.silences.set(silence("silenced=yes"), START)
    bench.notifier.put(
        [
            firing("Source"),
            firing("A", inhibited="yes", when="never", silenced="yes"),
            firing("B", when="never", silenced="yes"),
            firing("C", when="always", silenced="yes"),
            firing("D", silenced="yes"),
        ]
    )
    bench.advance(2.0)
    assert bench.told() == [["Source"]]
    assert bench.notifier.counters.suppressed == {
        "inhibition": 1, "active_time_interval": 1, "mute_time_interval": 1, "silence": 1,
    }  # fmt: skip
    groups = {group.labels["alertname"]: group.muted_by for group in bench.notifier.group_statuses()}
    assert groups == {"Source": (), "A": (), "B": ("never",), "C": ("always",), "D": ()}


@pytest.mark.parametrize("by", ["silence", "inhibition"])
def test_a_resolution_that_is_held_back_is_not_told_later(by: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, config=MUTED)
    bench.notifier.put([firing("A", inhibited="yes")])
    bench.advance(2.0)
    if by == "silence":
        bench.notifier.silences.set(silence("alertname=A", seconds=20.0), bench.clock.time)
    else:
        bench.notifier.put([firing("Source")])
    bench.advance(6.0)
    bench.notifier.put([firing("A", inhibited="yes", resolved=True)])
    bench.advance(31.0)  # the group was flushed at 11 s, and the silence ended at 20 s
    bench.notifier.put([replace(firing("Source"), ends_at=START + 30)])
    bench.advance(100.0)
    assert bench.told().count(["A"]) == 1


def test_upkeep_each_quarter_of_an_hour_forgets_silences_and_resolved_alerts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, state=True)
    bench.notifier.silences.set(silence("a=b"), START)
    bench.notifier.put([firing("A", resolved=True)])
    for seconds, groups in ((MAINTENANCE_SECONDS - 1, 1), (MAINTENANCE_SECONDS, 0)):
        bench.due(seconds)
        bench.notifier.use(bench.config, bench.channels)  # groups are built anew from the alerts that are known
        assert len(bench.notifier.group_statuses()) == groups
    bench.due(3600 + RETENTION_SECONDS - 1)
    assert len(bench.notifier.silences.all()) == 1
    bench.due(3600 + RETENTION_SECONDS + MAINTENANCE_SECONDS)
    assert bench.notifier.silences.all() == []
    assert bench.state is not None
    assert bench.state.silences() == []


def test_an_alert_without_an_end_is_resolved_after_resolve_timeout(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config="global: {resolve_timeout: 25s}\n" + CONFIG, limits=Limits())
    bench.notifier.put([replace(firing(), valid_until=0.0)])
    bench.advance(20.0)
    bench.notifier.put([replace(firing(), valid_until=0.0)])  # sent again: the time starts anew
    bench.advance(40.0)
    assert bench.told() == [["A"]]
    bench.advance(60.0)
    assert bench.told() == [["A"], ["A"]]
    assert b'"status":"resolved"' in bench.requests[1][2]
