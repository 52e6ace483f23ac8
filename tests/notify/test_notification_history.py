"""The history of notifications: who was notified, which messages failed, bounded and kept over a restart."""

from __future__ import annotations

from pathlib import Path

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alerting_config import build_channels, load_alerting
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.default_alerting import default_alerting
from gpuscope.judge.notify.notification_log import MAX_LISTED_ALERTS, MAX_VALUE_CHARACTERS, Outcome
from gpuscope.judge.notify.notifier import Notifier
from tests.notify.memory_state import MemoryState
from tests.notify.test_notifier import Bench, firing
from tests.notify.timeline import START, ManualClock, advance, recording_channels


def test_a_message_is_sending_then_failed_then_sent(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing(node="n1")])
    [delivery] = bench.due(1.0)
    [record] = bench.notifier.history()
    assert (record.outcome, record.finished_at, record.attempts) == (Outcome.SENDING, None, 0)
    assert record.alerts[0].labels == {"alertname": "A", "node": "n1"}
    for _ in range(3):
        bench.notifier.attempted(delivery, 0.1, SendError("refused", may_retry=True))
    bench.notifier.finished(delivery, SendError("refused", may_retry=True))
    [record] = bench.notifier.history()
    assert (record.outcome, record.attempts, record.error) == (Outcome.FAILED, 3, "refused")
    [again] = bench.due(11.0)
    bench.notifier.attempted(again, 0.1, None)
    bench.notifier.finished(again, None)
    newest, oldest = bench.notifier.history()
    assert (newest.outcome, newest.error, newest.finished_at) == (Outcome.SENT, "", START + 11.0)
    assert oldest.id < newest.id


def test_the_history_survives_a_restart(tmp_path: Path) -> None:
    first = Bench(tmp_path, state=True)
    first.notifier.put([firing("A", node="é"), firing("B")])
    first.advance(2.0)
    first.notifier.flush_due()  # the timer thread is woken by each finished message
    kept = first.notifier.history()
    assert len(kept) == 2
    del first  # as kill -9: nothing is closed
    second = Bench(tmp_path, state=True)
    assert second.notifier.history() == kept
    second.notifier.put([firing("C")])
    second.advance(4.0)
    assert [one.id for one in second.notifier.history()] == [3, 2, 1]


def test_the_oldest_records_are_forgotten_also_in_the_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, state=True, limits=Limits(max_notification_history=3))
    before = LIMITS_REACHED.counts()["max_notification_history"]
    for number in range(5):
        bench.notifier.put([firing(f"A{number}")])
        bench.advance(2.0 + number)
    bench.notifier.flush_due()
    assert [one.id for one in bench.notifier.history()] == [5, 4, 3]
    assert LIMITS_REACHED.counts()["max_notification_history"] == before + 2
    assert bench.state is not None
    assert sorted(one.id for one in bench.state.history()) == [3, 4, 5]


def test_more_messages_at_once_than_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path, state=True, limits=Limits(max_notification_history=2))
    bench.notifier.put([firing(f"A{number}") for number in range(6)])
    bench.advance(2.0)
    bench.notifier.flush_due()
    assert len(bench.requests) == 6
    assert [one.outcome for one in bench.notifier.history()] == [Outcome.SENT, Outcome.SENT]
    assert bench.state is not None
    assert len(bench.state.history()) == 2


def test_a_record_is_small_however_large_the_message_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.notifier.put([firing(gpu=str(n), text="x" * 60_000) for n in range(30)])
    bench.advance(2.0)
    [record] = bench.notifier.history()
    assert record.firing_count == 30
    assert 0 < len(record.alerts) <= MAX_LISTED_ALERTS
    assert max(len(value) for value in record.alerts[0].labels.values()) == MAX_VALUE_CHARACTERS


def test_repetitions_of_a_heartbeat_are_one_record() -> None:
    clock, requests = ManualClock(), list[tuple[float, str, bytes]]()
    config = default_alerting(["http://127.0.0.1:1/all"], "http://127.0.0.1:1/beat")
    notifier = Notifier(config, recording_channels(config, clock, requests), clock, MemoryState(), Limits())
    notifier.put([firing("Watchdog")])
    advance(notifier, clock, START + 3590)
    assert len(requests) == 60
    repeated, first = notifier.history()
    assert (first.reason, first.repeats) == ("first notification", 0)
    assert (repeated.reason, repeated.repeats) == ("repeat interval elapsed", 59)


def test_whom_a_channel_reaches_is_told_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(
        """
global: {smtp_from: a@b.c, smtp_smarthost: 'mail.example:25'}
route: {receiver: r}
receivers:
- name: r
  webhook_configs: [{url: 'https://user:s3cret@hook.example:8443/s3cret'}, {url_file: /nowhere}]
  email_configs: [{to: 'ops@example.org, night@example.org'}]
  slack_configs: [{api_url: 'https://hooks.slack.com/s3cret', channel: '#gpus'}]
  msteamsv2_configs: [{webhook_url: 'https://teams.example/s3cret'}]
  discord_configs: [{webhook_url: 'https://discord.com/api/webhooks/s3cret'}]
  telegram_configs: [{bot_token: s3cret, chat_id: -77}]
  pagerduty_configs: [{routing_key: s3cret}]
"""
    )
    told = {str(one.key): one.sent_to for one in build_channels(load_alerting(path))["r"]}
    assert told == {
        "r/webhook[0]": "hook.example:8443",
        "r/webhook[1]": "",
        "r/email[0]": "ops@example.org, night@example.org",
        "r/slack[0]": "#gpus",
        "r/msteamsv2[0]": "teams.example",
        "r/discord[0]": "discord.com",
        "r/telegram[0]": "chat -77",
        "r/pagerduty[0]": "events.pagerduty.com",
    }
    config = default_alerting(["ntfy://s3cret@ntfy.sh/s3cret", "slack://T1/B1/s3cret", "gotify://s3cret@h/t"])
    told = {str(one.key): one.sent_to for many in build_channels(config).values() for one in many}
    assert sorted(told.values()) == ["gotify", "hooks.slack.com", "ntfy.sh"]
