"""The native metrics of Slurm: goldens of recorded clusters, bounds, and what is absent when not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.native.slurm_metrics import MAX_REASONS, SlurmMetrics, fold_reason
from gpuscope.agent.families.slurm_counts import count_gpus, gpus_in_use, gpus_of_node
from gpuscope.agent.sources.slurm.gres import parse_gres
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.agent.sources.slurm.values import parse_node_state
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot, SourceStatus
from gpuscope.model.readings.slurm import Gres, JobPlacement, SlurmJob, SlurmNode, SlurmState
from tests.fake_slurm import VERSIONS, fake_clients
from tests.fakes import FakeClock
from tests.goldens import check_golden

NOW = 1_794_842_400.0  # a few minutes after the recordings


def families(state: SlurmState) -> dict[str, MetricFamily]:
    snapshot = Snapshot(node="master", taken_at=NOW, slurm=state)
    return {family.name: family for family in SlurmMetrics().to_families(snapshot) if family.samples}


def values(family: MetricFamily) -> dict[tuple[str, ...], float]:
    return {tuple(text for _, text in labels.pairs): value for labels, value in family.samples}


def job(number: int, state: str = "RUNNING", **changes: Any) -> SlurmJob:
    plain = SlurmJob(
        number, "alice", "ml", ("gpu",), state, "None", "train", 1, 1, (Gres("gpu", "", 1),), "gpu1"
    )
    return plain._replace(**changes)


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_clusters(tmp_path: Path, version: str) -> None:
    commands = SlurmCommands(str(fake_clients(tmp_path / "bin", version)), 60.0)
    source = SlurmSource(commands, interval=15.0, slow_interval=60.0, clock=FakeClock(NOW))
    snapshot = Snapshot(node="master", taken_at=NOW, slurm=source.read(frozenset()).slurm)
    text = encode_text(SlurmMetrics().to_families(snapshot))
    check_golden(Path(f"slurm/{version}-native.prom"), text)


def test_the_native_family_has_them() -> None:
    snapshot = Snapshot(node="master", taken_at=NOW, slurm=SlurmState(up=True))
    assert "gpuscope_slurm_up" in {family.name for family in NativeBuilder().to_families(snapshot)}


def test_a_forged_job_name_moves_no_gpu(tmp_path: Path) -> None:
    """A job of the recording is named so that scontrol prints a second record for job 1, with nine GPUs."""
    commands = SlurmCommands(str(fake_clients(tmp_path / "bin", "26.05")), 60.0)
    state = SlurmSource(commands, interval=15.0, slow_interval=60.0).read(frozenset()).slurm
    assert state is not ABSENT
    held = values(families(state)["gpuscope_slurm_user_gpus_allocated"])
    assert held["alice", "ml", "gpu", "a100"] == 5
    assert held["bob", "physics", "gpu", "a100"] == 3
    assert not any(key[0] == "999" for key in values(families(state)["gpuscope_slurm_job_info"]))


def test_states_of_gpus_add_up_to_the_total() -> None:
    nodes = (
        SlurmNode(name="a", long_state="idle", base_state="idle", gres=(Gres("gpu", "h100", 8),)),
        SlurmNode(
            name="b", long_state="draining", base_state="mixed", flags=frozenset({"drain"}),
            gres=(Gres("gpu", "h100", 8),), gres_used=(Gres("gpu", "h100", 3),),
        ),
        SlurmNode(name="c", long_state="down*", base_state="down", gres=(Gres("gpu", "h100", 8),)),
    )  # fmt: skip
    found = values(families(SlurmState(up=True, nodes=nodes))["gpuscope_slurm_gpus"])
    assert found == {
        ("gpu", "h100", "allocated"): 3, ("gpu", "h100", "idle"): 8, ("gpu", "h100", "drained"): 5,
        ("gpu", "h100", "down"): 8,
    }  # fmt: skip


def test_a_change_of_state_ends_no_series() -> None:
    one = SlurmState(up=True, nodes=(SlurmNode(name="a", long_state="idle", base_state="idle"),))
    two = SlurmState(up=True, nodes=(SlurmNode(name="a", long_state="mixed", base_state="mixed"),))
    before, after = (values(families(s)["gpuscope_slurm_node_state"]) for s in (one, two))
    assert before.keys() == after.keys()
    assert [state for (_, state), value in after.items() if value] == ["mixed"]


def test_a_state_that_is_not_known_is_shown() -> None:
    state = SlurmState(up=True, nodes=(SlurmNode(name="a", long_state="melted", base_state="melted"),))
    assert values(families(state)["gpuscope_slurm_node_state"])["a", "melted"] == 1


def test_a_suspended_job_is_told_from_those_that_run() -> None:
    jobs = (job(1), job(2, state="SUSPENDED"))
    found = families(SlurmState(up=True, jobs=jobs))
    assert [key[0] for key in values(found["gpuscope_slurm_job_info"])] == ["1", "2"], "it keeps its GPUs"
    assert values(found["gpuscope_slurm_job_suspended"]) == {("2",): 1}


def test_jobs_with_gpus_get_series_first_and_the_rest_is_counted() -> None:
    jobs = (*(job(n, gres=()) for n in range(10)), job(99))
    state = SlurmState(up=True, jobs=jobs, max_job_series=2)
    found = families(state)
    assert [key[0] for key in values(found["gpuscope_slurm_job_info"])] == ["99", "0"]
    assert values(found["gpuscope_slurm_jobs_without_series"]) == {(): 9}


def test_gres_indices_of_a_job_on_two_nodes() -> None:
    gres = Gres("gpu", "a100", 2, (0, 3))
    placements = {7: (JobPlacement("gpu1", (gres,)), JobPlacement("gpu2", (gres,)))}
    state = SlurmState(up=True, jobs=(job(7),), placements=placements)
    assert list(values(families(state)["gpuscope_slurm_job_gres_info"])) == [
        ("7", node, "gpu", "a100", index) for node in ("gpu1", "gpu2") for index in ("0", "3")
    ]


@pytest.mark.parametrize(("gres", "shown"), [((), {}), ((Gres("gpu", "", 2),), {("7",): 2})])
def test_gpus_of_a_job_without_a_placement(gres: tuple[Gres, ...], shown: dict[tuple[str, ...], float]) -> None:
    """Its TRES tell, with slurmdbd; otherwise the number is not known, which is not 0."""
    state = SlurmState(up=True, jobs=(job(7, gres=gres),), placements={7: ()})
    found = families(state).get("gpuscope_slurm_job_gpus")
    assert (values(found) if found else {}) == shown


def test_gpus_of_a_node_in_maintenance_are_drained() -> None:
    base, flags = parse_node_state("mixed$", "mixed+maintenance")
    node = SlurmNode(
        name="gpu1", long_state="mixed$", base_state=base, flags=flags, gres=(Gres("gpu", "a100", 4),),
        gres_used=(Gres("gpu", "a100", 3),),
    )  # fmt: skip
    assert values(families(SlurmState(up=True, nodes=(node,)))["gpuscope_slurm_gpus"]) == {
        ("gpu", "a100", "allocated"): 3,
        ("gpu", "a100", "idle"): 0,
        ("gpu", "a100", "drained"): 1,
        ("gpu", "a100", "down"): 0,
    }


def test_a_sum_without_one_of_its_nodes_is_absent() -> None:
    """22.05 does not count the shards that are in use."""
    plain = SlurmNode(
        name="gpu1", long_state="idle", base_state="idle", partitions=("a", "b"), gres=(Gres("shard", "", 4),)
    )
    unknown = replace(plain, name="gpu2", partitions=("b",), gres_uncounted=frozenset({("shard", "")}))
    found = families(SlurmState(up=True, nodes=(plain, unknown)))
    assert {labels[0] for labels in values(found["gpuscope_slurm_node_gpus"])} == {"gpu1"}
    assert {labels[0] for labels in values(found["gpuscope_slurm_partition_gpus"])} == {"a"}
    assert "gpuscope_slurm_gpus" not in found


def test_waiting_time_counts_from_when_a_job_may_start() -> None:
    jobs = (
        job(1, "PENDING", eligible_at=NOW - 30, partitions=("gpu", "all")),
        job(2, "PENDING", eligible_at=NOW - 4000, tasks=3),
        job(3, "PENDING", eligible_at=NOW + 60),  # --begin
        job(4, "PENDING"),  # held
    )
    found = families(SlurmState(up=True, read_at=NOW, jobs=jobs))
    assert values(found["gpuscope_slurm_partition_oldest_pending_seconds"]) == {("gpu",): 4000, ("all",): 30}
    waiting = values(found["gpuscope_slurm_partition_jobs_waiting"])
    assert (waiting["gpu", "60"], waiting["gpu", "3600"], waiting["gpu", "14400"]) == (1, 1, 4)
    assert waiting["gpu", "+Inf"] == 4


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:gpu[3-4]", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail, UnavailableNodes:", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail(UnavailableNodes:gpu[3-4])", "ReqNodeNotAvail"),
        *((reason, reason) for reason in (
            "ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail", "Priority",
            "launch failed requeued held",
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        )),
        ("", "None"),
    ],
)  # fmt: skip
def test_reasons_are_slurms_own_without_lists_of_nodes(reason: str, shown: str) -> None:
    assert fold_reason(reason) == shown


def test_gpus_with_shares_are_not_idle() -> None:
    """Slurm gives such a GPU to no job that wants a whole one. As 22.05 and 24.11 print it."""
    gres = parse_gres("gpu:h100:2,gpu:a100_3g.20gb:2,shard:h100:4,shard:a100_3g.20gb:4")
    for used in (
        "gpu:h100:0(IDX:N/A),gpu:a100_3g.20gb:1(IDX:2),shard:h100:1(IDX:1),shard:a100_3g.20gb:0(IDX:N/A)",
        "gpu:h100:0(IDX:N/A),gpu:a100_3g.20gb:1(IDX:2),shard:h100:2(0/2,2/2),shard:a100_3g.20gb:0(-/2,0/2)",
    ):
        node = SlurmNode(name="gpu3", long_state="mixed", gres=gres, gres_used=parse_gres(used))
        counts = {key[1:]: count for key, count in gpus_of_node(node).items() if key[0] == "gpu" and count}
        assert counts == {
            ("h100", "allocated"): 1,
            ("h100", "idle"): 1,
            ("a100_3g.20gb", "allocated"): 1,
            ("a100_3g.20gb", "idle"): 1,
        }
        assert count_gpus([node]) == (4, 2)
    # Without a type the positions are those of all GPUs of the node.
    node = SlurmNode(
        name="gpu3", long_state="mixed", gres=gres, gres_used=parse_gres("shard:3(0/2,0/2,1/2,2/2)")
    )
    assert gpus_in_use(node) == {"a100_3g.20gb": 2}


def test_reasons_are_bounded() -> None:
    jobs = tuple(job(n, "PENDING", reason=f"plugin reason {n}") for n in range(500))
    found = values(families(SlurmState(up=True, jobs=jobs))["gpuscope_slurm_partition_jobs_pending"])
    assert len(found) == MAX_REASONS + 1
    assert found["gpu", "other"] == 500 - MAX_REASONS


def test_down_says_so_and_shows_nothing_else() -> None:
    found = families(SlurmState(up=False, why="slurmctld is down"))
    assert values(found["gpuscope_slurm_up"]) == {(): 0}
    assert found.keys() == {"gpuscope_slurm_up"}


def test_a_source_without_an_answer_is_not_up() -> None:
    status = SourceStatus(name="slurm", up=False, why="no answer for 99 s")
    snapshot = Snapshot(node="master", taken_at=NOW, sources=(status,))
    (family,) = SlurmMetrics().to_families(snapshot)
    assert (family.name, values(family)) == ("gpuscope_slurm_up", {(): 0})
    assert list(SlurmMetrics().to_families(Snapshot(node="compute", taken_at=NOW))) == []
