"""Every family of every simulated GPU model as a golden file: each changed byte appears in a diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.agent.collect.composer import Integrator
from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings, load_settings
from gpuscope.demo import DemoFleet
from gpuscope.model.demo_model import demo_models
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Snapshot, SourceStatus
from tests.goldens import check_golden

GOLDEN = Path(__file__).parent.parent / "golden" / "models"
AT = 1_750_000_000.0
FAMILIES = ("native", "dcgm", "nvidia_smi", "dcgm_legacy", "sessions")
NAMES = (*demo_models(), "a100-80-mig", "h100-mig")


def snapshot_of(model: str) -> Snapshot:
    settings = load_settings({"demo_model": model, "demo_gpus": "2", "seed": "7"}, {})
    fleet = DemoFleet(settings, started_at=AT - 60, nodes=1)
    integrator = Integrator(max_gap_seconds=60.0)
    for at in (AT - 1, AT):
        reading = fleet.reading(0, at, at - 1)
        counters = integrator.advance(reading.devices, at)
    assert reading.drivers
    return Snapshot(
        node=fleet.node_names[0],
        taken_at=AT,
        simulated=True,
        drivers=reading.drivers,
        devices=reading.devices,
        processes=reading.processes,
        counters=counters,
        sources=(
            SourceStatus(name="demo", up=True, why="simulated", last_success_at=AT, duration_seconds=0.5),
        ),
        expected_gpus=2,
    )


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_golden(model: str, family: str) -> None:
    builder = load_family(family).build(Settings())
    text = encode_text(builder.to_families(snapshot_of(model)))
    check_golden(GOLDEN / f"{model}.{family}.prom", text)
