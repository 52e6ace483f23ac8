"""A hundred thousand evaluations with alerts that come and go: memory does not grow, up to the last message."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

from gpuscope.limits import Limits
from gpuscope.notify.alerting_config import load_alerting
from gpuscope.notify.channels import SendError
from gpuscope.notify.notifier import Notifier
from gpuscope.notify.notify_state import FILE_NAME, NotifyState
from gpuscope.promql import Vector
from gpuscope.rules.go_templates import load_templates
from gpuscope.rules.interfaces import NoSamples
from gpuscope.rules.rule_spec import SECOND_NS
from tests.notify.timeline import ManualClock, recording_channels
from tests.rules.rig import Rig

RULES = """
groups:
- name: g
  interval: 1s
  rules:
  - {alert: A, expr: m > 1, for: 2s, keep_firing_for: 3s, annotations: {value: "{{ $value }}"}}
  - {record: r, expr: m}
"""
EVALUATIONS = 100_000
GROWTH_BYTES = 4 << 20


class ChangingSeries:
    """Five series of fifty thousand names, other ones every few evaluations."""

    def __init__(self) -> None:
        self.calls = 0

    def instant(self, expression: str, at_ms: int) -> Vector:
        self.calls += 1
        first = self.calls // 400
        labels = [(("__name__", "m"), ("x", f"series-{(first + one) % 50_000}")) for one in range(5)]
        return Vector(at_ms, labels, np.arange(2.0, 7.0))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def notifier_of(folder: Path) -> tuple[Notifier, ManualClock]:
    """Groups by series, so that groups, log entries and records come and go too."""
    path = folder / "alertmanager.yml"
    path.write_text(
        "route: {receiver: r, group_by: [x], group_wait: 5s, group_interval: 30s, repeat_interval: 10m}\n"
        "receivers: [{name: r, webhook_configs: [{url: 'http://127.0.0.1:1/'}]}]\n"
    )
    config, clock = load_alerting(path), ManualClock()
    channels = recording_channels(config, clock, [])
    return Notifier(config, channels, clock, NotifyState(folder / FILE_NAME), Limits()), clock


@pytest.mark.slow
def test_memory_is_flat_over_many_evaluations(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "rig", templates=load_templates())
    rig.start_runner(RULES, queries=ChangingSeries(), samples=NoSamples())
    group = rig.group("g")
    start = 1_800_000_000
    sizes: list[int] = []
    sent = 0
    notifier, clock = notifier_of(tmp_path)
    for number in range(EVALUATIONS):
        group.evaluate((start + number) * SECOND_NS)
        clock.time = float(start + number)
        notifier.take(list(rig.kept.alerts))
        rig.kept.alerts.clear()
        for delivery in notifier.flush_due():
            sent += 1
            error = SendError("no", may_retry=False) if sent % 7 == 0 else None
            notifier.attempted(delivery, 0.01, error)
            notifier.finished(delivery, error)
        if number % (EVALUATIONS // 10) == EVALUATIONS // 10 - 1:
            gc.collect()
            sizes.append(resident_bytes())
    rig.close()
    assert sent > EVALUATIONS / 1000
    # Resolved alerts are kept for 15 minutes, so the first tenth is when it grows.
    assert max(sizes[1:]) - sizes[1] < GROWTH_BYTES, sizes
