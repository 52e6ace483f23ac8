"""Family `slurm` from recorded output of three versions of Slurm: goldens, and the values vpenso has wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuscope.agent.families.slurm.builder import SLURM_METRICS, SlurmBuilder
from gpuscope.agent.families.slurm_counts import account_fair_shares
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.readings.slurm import FairShare, SlurmNode, SlurmState
from tests.fake_slurm import VERSIONS, fake_clients
from tests.goldens import check_golden


def read_state(tmp_path: Path, version: str) -> SlurmState:
    commands = SlurmCommands(str(fake_clients(tmp_path / "bin", version)), 60.0)
    state = SlurmSource(commands, interval=15.0, slow_interval=60.0).read(frozenset()).slurm
    assert state is not ABSENT
    return state


def exposition(state: SlurmState) -> str:
    snapshot = Snapshot(node="master", taken_at=0.0, slurm=state)
    return encode_text(SlurmBuilder().to_families(snapshot)).decode()


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_clusters(tmp_path: Path, version: str) -> None:
    check_golden(Path(f"slurm/{version}.prom"), exposition(read_state(tmp_path, version)).encode())


def test_the_table_has_vpensos_62_names() -> None:
    names = [row.name for row in SLURM_METRICS]
    assert len(names) == len(set(names)) == 62


def test_each_name_has_a_series_on_a_cluster_that_runs_for_a_while(tmp_path: Path) -> None:
    text = exposition(read_state(tmp_path, "22.05"))
    assert set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE)) == {row.name for row in SLURM_METRICS}


def test_values_that_vpenso_has_wrong(tmp_path: Path) -> None:
    text = exposition(read_state(tmp_path, "26.05"))
    for line in (
        "slurm_gpus_total 20",  # typed and mixed GRES
        "slurm_gpus_alloc 12",  # one of them by shards
        'slurm_partition_jobs_pending{partition="all"} 1',  # waits for gpu,all
        'slurm_node_cpu_total{node="longname-gpu-node-number-0005",status="unknown*"} 16',
    ):
        assert line in text.splitlines()


def test_a_waiting_array_counts_its_tasks(tmp_path: Path) -> None:
    """101 tasks wait for their time, 4 for their array's limit, and seven other jobs wait too."""
    text = exposition(read_state(tmp_path, "26.05"))
    assert "slurm_queue_pending 112\n" in text


def test_what_was_not_read_has_no_series() -> None:
    text = exposition(SlurmState(up=True, nodes=(SlurmNode(name="a", long_state="idle", base_state="idle"),)))
    assert "slurm_nodes_idle 1\n" in text
    assert "slurm_queue_" not in text
    assert "slurm_scheduler_" not in text
    assert exposition(SlurmState(up=False)) == ""


@pytest.mark.parametrize(
    ("long_state", "base", "metric"),
    [
        ("planned", "idle", "idle"), ("powered_down", "idle", "idle"), ("mixed-", "mixed", "mix"),
        ("down*", "down", "down"), ("reserved", "idle", "resv"), ("completing", "allocated", "comp"),
        ("failing", "allocated", "fail"), ("drained*", "down", "drain"), ("allocated+", "allocated", "alloc"),
    ],
)  # fmt: skip
def test_states_of_nodes(long_state: str, base: str, metric: str) -> None:
    text = exposition(SlurmState(up=True, nodes=(SlurmNode(name="a", long_state=long_state, base_state=base),)))
    assert f"slurm_nodes_{metric} 1\n" in text
    assert len(re.findall(r"^slurm_nodes_\w+ 1$", text, re.MULTILINE)) == 1


def test_without_fair_tree_an_account_has_its_own_factor() -> None:
    shares = (
        FairShare(account="root"),
        FairShare(account="ml", parent="root", fair_share=0.25),
        FairShare(account="vision", parent="ml"),
        FairShare(account="vision", user="alice", fair_share=0.75),
        FairShare(account="vision", user="bob", fair_share=0.5),
    )
    assert account_fair_shares(shares) == {"root": 0.75, "ml": 0.25, "vision": 0.75}
