"""The page of Slurm's queue in `top`: from a simulated cluster, down, without Slurm, and with hostile names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.native.slurm_table import QUEUE_METRICS
from gpuscope.base.settings import Settings
from gpuscope.cli.terminal.fleet_view import FleetView, to_fleet_view
from gpuscope.cli.terminal.queue_view import QueueSample, to_queue
from gpuscope.cli.terminal.spans import cell_width, fit_line, is_control
from gpuscope.cli.terminal.top_lines import queue_lines
from gpuscope.demo import DemoFleet
from gpuscope.model.readings import Snapshot
from tests.goldens import check_golden

NOW = 1_800_000_000.0


def simulated() -> list[QueueSample]:
    fleet = DemoFleet(Settings(demo_nodes=4), started_at=NOW)
    snapshot = Snapshot(node="gpu-a01", taken_at=NOW, slurm=fleet.slurm_state(NOW))
    return [
        (family.name, dict(labels.pairs), value)
        for family in SlurmMetrics().to_families(snapshot)
        if family.name in QUEUE_METRICS
        for labels, value in family.samples
    ]


def lines_of(samples: list[QueueSample], width: int = 80) -> list[str]:
    view = FleetView(now=NOW, queue=to_queue(samples))
    return ["".join(span.text for span in fit_line(line, width)).rstrip() for line in queue_lines(view, width)]


@pytest.mark.parametrize("width", [60, 100])
def test_a_queue_as_a_whole(width: int) -> None:
    text = "\n".join(lines_of(simulated(), width)) + "\n"
    check_golden(Path(f"terminal/queue-{width}.txt"), text.encode())


def test_jobs_that_wait_come_with_reason_and_waiting_time() -> None:
    labels = {"slurm_job": "17", "user": "alice", "partition": "gpu", "reason": "Resources"}
    later = {**labels, "slurm_job": "18", "reason": "Dependency"}
    tomorrow = {**labels, "slurm_job": "19", "reason": "BeginTime"}
    samples: list[QueueSample] = [
        ("gpuscope_slurm_pending_job_info", later, 1.0),
        ("gpuscope_slurm_pending_job_info", labels, 1.0),
        ("gpuscope_slurm_pending_job_info", tomorrow, 1.0),
        ("gpuscope_slurm_pending_job_gpus", {"slurm_job": "17"}, 4.0),
        ("gpuscope_slurm_pending_job_tasks", {"slurm_job": "17"}, 12.0),
        ("gpuscope_slurm_pending_job_eligible_timestamp_seconds", {"slurm_job": "17"}, NOW - 5400),
        ("gpuscope_slurm_pending_job_eligible_timestamp_seconds", {"slurm_job": "19"}, NOW + 5400),
    ]
    lines = lines_of(samples)
    at = lines.index("waiting: 3")
    assert lines[at + 2].split() == ["17", "×12", "alice", "gpu", "4", "1h30", "Resources"]
    assert lines[at + 3].split() == ["19", "alice", "gpu", "BeginTime"], "it does not wait yet"
    assert lines[at + 4].split() == ["18", "alice", "gpu", "Dependency"], "not known is not 0"


def test_without_slurm_and_with_slurm_down() -> None:
    assert "no Slurm queue" in lines_of([])[0]
    assert "does not answer" in lines_of([("gpuscope_slurm_up", {}, 0.0)])[0]
    assert to_fleet_view({"gpus": [], "slurm": [1, "x", {"a": 2}]}).queue is None, "another server's words"


@given(st.text(), st.integers(20, 200))
def test_hostile_names_are_printable_and_fit(name: str, width: int) -> None:
    labels = {"slurm_job": "17", "user": name, "partition": name, "reason": name, "name": name,
              "node": name, "by": name, "reservation": name, "nodes": name}  # fmt: skip
    metrics = ("pending_job_info", "partition_oldest_pending_seconds", "node_reason_info", "reservation_info")
    lines = lines_of([(f"gpuscope_slurm_{metric}", labels, 1.0) for metric in metrics], width)
    assert not any(is_control(character) for line in lines for character in line)
    assert all(cell_width(line) <= width for line in lines)
