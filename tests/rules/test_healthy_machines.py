"""The shipped rules over healthy machines: the recorded output for twelve GPU models, constant for an hour.

A rule whose condition holds there would wake people up for nothing. What does hold is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuscope.history.promql import Engine, Vector
from gpuscope.judge.rules.shipped import shipped_groups
from gpuscope.model.exposition.parser import parse_once
from tests.goldens import GOLDEN
from tests.promql.memory import MemoryStorage

MODELS = sorted(GOLDEN.glob("models/*.native.prom"))
FAMILIES = {"gpuscope-": "native", "dcgm-exporter": "dcgm", "nvidia-gpu-exporter": "nvidia_smi"}
HOLDS: Mapping[str, str] = {
    "gpuscope-service: Watchdog": "it always fires",
    "gpuscope-gpu: PersistenceOff": "desktops run without persistence mode; the alert is information",
    "nvidia-gpu-exporter: PersistenceOff": "as above",
}
"""Alerts whose condition holds on a healthy machine, and why that is right."""
MINUTES = 60


def recorded(path: Path) -> tuple[Engine, int]:
    """An engine over an hour of the recorded samples, and the time of the recording in milliseconds."""
    storage = MemoryStorage()
    samples = [(dict(pairs), value) for pairs, _, value in parse_once(path.read_text())]
    stamps = [
        value for labels, value in samples if labels["__name__"] == "gpuscope_agent_snapshot_timestamp_seconds"
    ]
    now = int((stamps[0] if stamps else 1_750_000_000) * 1000)
    for labels, value in samples:
        times = range(now - MINUTES * 60_000, now + 1, 120_000)
        storage.add({"instance": "node1:9400", **labels}, [(at, value) for at in times])
    return Engine(storage), now


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name.split(".")[0])
def test_no_rule_fires_on_a_healthy_machine(path: Path) -> None:
    firing = set()
    for group in shipped_groups():
        family = next(name for prefix, name in FAMILIES.items() if group.name.startswith(prefix))
        engine, now = recorded(path.with_name(path.name.replace("native", family)))
        for rule in group.rules:
            answer = engine.instant(rule.expression, now)
            if isinstance(answer, Vector) and len(answer.labels):
                firing.add(f"{group.name}: {rule.alert}")
    assert firing <= set(HOLDS)
