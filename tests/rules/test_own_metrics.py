"""Rules about this process: own metrics are stored, and shipped rules see a failing channel and rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.base.limits import Limits
from gpuscope.history.scrape.local_feeds import OWN_JOB, OwnMetricsFeed, scrapes_itself
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.history.store import Store, StoreError
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.default_alerting import default_alerting
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.judge.rules.alert_state import AlertState
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.rule_group import EvaluationTotals
from gpuscope.judge.rules.rule_runner import rule_families
from gpuscope.model.exposition.sample import MetricFamily
from tests.notify.memory_state import MemoryState
from tests.notify.test_notifier import firing
from tests.notify.timeline import recording_channels
from tests.rules.rig import HeldClock, Rig

SERVICE_RULES = (Path(__file__).parents[2] / "deploy/prometheus/rules/gpuscope-service.yml").read_text()
FAILING_RULE = """
  - name: failing
    rules: [{record: double, expr: 'label_replace(vector(1), "a", "1", "", "") or vector(2)', labels: {a: "0"}}]
"""


class Watched:
    """The shipped rules over the own metrics of a notifier and of the rule engine, on one clock."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder, with_store=True, templates=load_templates())
        self.rig.start_runner(SERVICE_RULES + FAILING_RULE)
        config = default_alerting(["http://127.0.0.1:1/hook"])
        clock = self.rig.clock
        self.notifier = Notifier(config, recording_channels(config, clock, []), clock, MemoryState(), Limits())
        assert self.rig.store is not None
        self.feed = OwnMetricsFeed(self.rig.store, "n1", 5.0, self.families, clock)

    def families(self) -> Iterator[MetricFamily]:
        yield from rule_families(self.rig.runner.groups, EvaluationTotals())
        yield from self.notifier.families()

    def run(self, minutes: int, *, channel_works: bool) -> None:
        """Alerts of the rules go to the notifier; each message is accepted or not."""
        for _ in range(minutes * 4):
            self.feed.store_now()
            self.rig.advance(15.0)
            self.notifier.put(self.rig.kept.alerts)
            self.rig.kept.alerts.clear()
            for delivery in self.notifier.flush_due():
                self.notifier.finished(delivery, None if channel_works else SendError("no", may_retry=False))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.rig.close()


def test_a_failing_channel_and_a_failing_rule_are_alerts(watched: Watched) -> None:
    watched.run(26, channel_works=True)
    assert watched.rig.rule("NotifyFailing").state() is AlertState.INACTIVE
    assert watched.rig.rule("RuleTrouble").state() is AlertState.FIRING
    [alert] = watched.rig.rule("RuleTrouble").table
    assert dict(alert.labels)["instance"] == "n1"
    watched.notifier.put([firing("GpuLost")])  # nothing fails while there is nothing to send
    watched.run(26, channel_works=False)
    assert watched.rig.rule("NotifyFailing").state() is AlertState.FIRING
    assert watched.rig.rule("StoreTrouble").state() is AlertState.INACTIVE


def test_own_metrics_are_stored_as_a_scrape_would(watched: Watched) -> None:
    watched.run(1, channel_works=True)
    [(labels, value)] = watched.rig.query("alertmanager_config_last_reload_successful")
    assert (labels["job"], labels["instance"], value) == (OWN_JOB, "n1", 1.0)
    assert watched.rig.query(f'{{job="{OWN_JOB}", __name__=~"up|scrape_.*"}}') == [], "it is no target"


def test_own_metrics_end_with_stale_markers_while_they_are_not_wanted(watched: Watched) -> None:
    assert watched.rig.store is not None
    wanted = [True]
    feed = OwnMetricsFeed(
        watched.rig.store, "n2", 5.0, watched.families, watched.rig.clock, is_wanted=lambda: wanted[0]
    )
    own = f'alertmanager_config_last_reload_successful{{job="{OWN_JOB}", instance="n2"}}'
    for is_wanted in (True, False, False, True):
        wanted[0] = is_wanted
        feed.store_now()
        assert bool(watched.rig.query(own)) is is_wanted
        assert bool(feed.stored_at) is is_wanted
        watched.rig.advance(15.0)


@pytest.mark.parametrize(
    ("url", "is_itself"),
    [
        ("http://localhost:9470/metrics", True),
        ("http://127.0.0.1:9470/metrics", True),
        ("http://[::1]:9470/metrics", True),
        ("https://this-machine:9470/metrics", True),
        ("http://localhost:9471/metrics", False),
        ("http://localhost:9470/other", False),
        ("http://other:9470/metrics", False),
        ("http://localhost:port/metrics", False),
    ],
)
def test_a_target_that_is_this_process(url: str, is_itself: bool) -> None:
    targets = [TargetHealth(labels={}, url=one) for one in ("http://n1:9400/metrics", url)]
    assert scrapes_itself(targets, ("this-machine", "0.0.0.0"), 9470) is is_itself


class _FullStore(Store):
    def submit(self, *args: object) -> object:  # type: ignore[override]
        raise StoreError("disk full")


def test_a_store_that_fails_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = _FullStore(tmp_path / "store")
    store.start()
    feed = OwnMetricsFeed(store, "n1", 5.0, lambda: (), HeldClock())
    for _ in range(3):
        feed.store_now()
    store.close()
    assert [message for message in caplog.messages if "disk full" in message] == [caplog.messages[0]]
    assert feed.stored_at == 0.0
