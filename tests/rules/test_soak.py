"""A hundred thousand evaluations with alerts that come and go: memory does not grow."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

from gpuscope.promql import Vector
from gpuscope.rules.interfaces import NoSamples
from gpuscope.rules.rule_spec import SECOND_NS
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


@pytest.mark.slow
def test_memory_is_flat_over_many_evaluations(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "rig")
    rig.start_runner(RULES, queries=ChangingSeries(), samples=NoSamples())
    group = rig.group("g")
    start = 1_800_000_000
    sizes: list[int] = []
    for number in range(EVALUATIONS):
        group.evaluate((start + number) * SECOND_NS)
        rig.kept.alerts.clear()
        if number % (EVALUATIONS // 10) == EVALUATIONS // 10 - 1:
            gc.collect()
            sizes.append(resident_bytes())
    rig.close()
    # Resolved alerts are kept for 15 minutes, so the first tenth is when it grows.
    assert max(sizes[1:]) - sizes[1] < GROWTH_BYTES, sizes
