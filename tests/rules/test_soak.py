"""A hundred thousand evaluations with alerts that come and go: memory does not grow, up to the last message."""

from __future__ import annotations

import gc
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpuscope.base.limits import Limits
from gpuscope.history.promql import Vector
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.judge.notify.notify_state import FILE_NAME, NotifyState
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.rule_io import NoSamples
from tests.notify.timeline import ManualClock, recording_channels
from tests.rules.rig import Rig

RULES = """
groups:
- name: g
  interval: 10s
  rules:
  - {alert: A, expr: m > 1, for: 20s, keep_firing_for: 30s, annotations: {value: "{{ $value }}"}}
  - {record: r, expr: m}
"""
INTERVAL_SECONDS = 10
EVALUATIONS = 100_000
"""Eleven days with 25,000 alerts: more than every cache and list of recent things keeps."""
SETTLED = 7
"""Tenths: then the largest of them, 16,384 fingerprints of alerts, is full."""
GROWTH_BYTES = 4 << 20
GROWTH_OBJECTS = 2_000
"""Of one object in ten evaluations."""


class ChangingSeries:
    """Five series of fifty thousand names, other ones every few evaluations."""

    def __init__(self) -> None:
        self.calls = 0

    def instant(self, expression: str, at_ms: int) -> Vector:
        self.calls += 1
        first = self.calls // 8
        labels = [(("__name__", "m"), ("x", f"series-{(first + one) % 50_000}")) for one in range(5)]
        return Vector(at_ms, labels, np.arange(2.0, 7.0))


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


@dataclass(frozen=True, slots=True)
class Size:
    resident_bytes: int
    objects: int
    """Memory blocks of Python's allocator: a leak of one object shows, where pages hide it."""

    @classmethod
    def now(cls) -> Size:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        return cls(resident, sys.getallocatedblocks())


@pytest.mark.slow
def test_memory_is_flat_over_many_evaluations(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "rig", templates=load_templates())
    rig.start_runner(RULES, queries=ChangingSeries(), samples=NoSamples())
    rig.runner.run_due()
    notifier, clock = notifier_of(tmp_path)
    sizes: list[Size] = []
    sent = 0
    for number in range(EVALUATIONS):
        rig.clock.seconds += INTERVAL_SECONDS
        clock.time = rig.clock.seconds
        rig.runner.run_due()
        notifier.take(list(rig.kept.alerts))
        rig.kept.alerts.clear()
        for delivery in notifier.flush_due():
            sent += 1
            error = SendError("no", may_retry=False) if sent % 7 == 0 else None
            notifier.attempted(delivery, 0.01, error)
            notifier.finished(delivery, error)
        if number % (EVALUATIONS // 10) == EVALUATIONS // 10 - 1:
            sizes.append(Size.now())
    for number, size in enumerate(sizes, 1):
        done = number * EVALUATIONS // 10
        print(f"{done} evaluations: {size.resident_bytes / 2**20:.1f} MiB, {size.objects} objects")
    group = rig.group("g")
    rig.close()
    assert (group.iterations, group.missed) == (EVALUATIONS, 0)
    assert sent > EVALUATIONS / 1000
    after = sizes[SETTLED:]
    assert max(size.objects for size in after) - after[0].objects < GROWTH_OBJECTS, sizes
    assert max(size.resident_bytes for size in after) - after[0].resident_bytes < GROWTH_BYTES, sizes
