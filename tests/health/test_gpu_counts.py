"""One count of GPUs and one truth about who has them: the state of each unit, and how units are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.judge.checks.facts import Sample
from gpuscope.judge.checks.states import WORST_FIRST, CountedGpu, State, count_gpus
from gpuscope.model.exposition.parser import SeriesCache
from gpuscope.serve.api_types.live_json import LivePicture
from tests.fakes import Keywords
from tests.health.fleets import NOW, gpu, gpu_labels, node
from tests.server.live.pictures import fleet_state

UNKNOWN = {State.LOST, State.GONE, State.STALE}


def allocation(labels: dict[str, str], used: float = 0.0, **owner: str) -> Sample:
    return ("gpuscope_allocation_used", {**labels, **owner}, used)


def process(labels: dict[str, str], pid: int, active: float = 0.0, **owner: str) -> list[Sample]:
    own = {**labels, "pid": str(pid), **owner}
    return [("gpuscope_process_memory_bytes", own, 1e9), ("gpuscope_process_active", own, active)]


def instance(index: str, of: str) -> tuple[dict[str, str], list[Sample]]:
    board = gpu_labels(of)
    labels = {"instance": board["instance"], "gpu": f"{of}_{index}_0", "uuid": f"MIG-{of}-{index}"}
    info = {**labels, "parent_uuid": board["uuid"], "profile": "1g.10gb"}
    samples: list[Sample] = [
        ("gpuscope_mig_info", info, 1.0),
        ("gpuscope_gpu_memory_used_bytes", labels, 0.0),
        ("gpuscope_gpu_processes", {**labels, "state": "idle"}, 0.0),
    ]
    return labels, samples


def picture(*samples: list[Sample] | Sample) -> LivePicture:
    listed = [one for part in samples for one in (part if isinstance(part, list) else [part])]
    return fleet_state([*node(), *listed], now=NOW, source="test")


def states(shown: LivePicture) -> dict[str, tuple[str, bool]]:
    return {row["gpu"]: (row["state"], row["in_use"]) for row in shown["gpus"]}


@pytest.mark.parametrize("owner", [{"slurm_job": "7"}, {"pod": "p", "namespace": "ml"}, {}])
def test_an_allocated_gpu_is_never_free(owner: Keywords) -> None:
    shown = picture(gpu("0", busy=0.0), gpu("1", busy=0.0), allocation(gpu_labels("0"), **owner))
    assert states(shown) == {"0": ("allocated", True), "1": ("idle", False)}
    assert (shown["counts"]["free"], shown["counts"]["in_use"]) == (1, 1)


def test_what_slurm_gave_is_allocated_without_a_prolog_too() -> None:
    """Known from the cluster's agent: node, index and job, joined with the node's own GPUs."""
    cluster = {"instance": "head:9400"}
    shown = picture(
        gpu("0", busy=0.0),
        gpu("1", busy=0.0),
        ("gpuscope_slurm_job_info", {**cluster, "slurm_job": "7", "user": "ann"}, 1.0),
        ("gpuscope_slurm_job_node_info", {**cluster, "slurm_job": "7", "node": "n1"}, 1.0),
        ("gpuscope_slurm_node_gpus", {**cluster, "node": "n1", "gres": "gpu", "state": "allocated"}, 1.0),
        ("gpuscope_slurm_node_gpus", {**cluster, "node": "n1", "gres": "gpu", "state": "idle"}, 1.0),
        (
            "gpuscope_slurm_job_gres_info",
            {**cluster, "slurm_job": "7", "node": "n1", "gres": "gpu", "index": "1"},
            1.0,
        ),
    )
    assert states(shown) == {"0": ("idle", False), "1": ("allocated", True)}
    assert [row.get("jobs") for row in shown["gpus"]] == [None, ["7"]]


@pytest.mark.parametrize(
    ("indices", "allocated", "expected"),
    [
        ([], 1.0, ["stale", "stale", "stale"]),  # gres.conf has a count and no files
        (["1"], 2.0, ["stale", "allocated", "stale"]),  # the second job has no series, or has just started
        (["1"], 1.0, ["idle", "allocated", "idle"]),
        (["1", "7"], 2.0, ["idle", "allocated", "idle"]),  # the agent does not see GPU 7
        (["", "1"], 2.0, ["stale", "allocated", "stale"]),
    ],
)
def test_a_gpu_that_slurm_may_have_given_away_is_not_free(
    indices: list[str], allocated: float, expected: list[str]
) -> None:
    """And it is no unused GPU either, although its agent, without a prolog, sees nobody on it."""
    cluster = {"instance": "head:9400"}
    gpus = [
        (name, {**labels, "minor": labels["gpu"]} if name == "gpuscope_gpu_info" else labels, value)
        for n in "012"
        for name, labels, value in gpu(n, busy=0.0)
    ]
    free: list[Sample] = [("gpuscope_gpu_free_for_seconds", gpu_labels(n), 7 * 86400.0) for n in "012"]
    about = {**cluster, "node": "n1", "gres": "gpu"}
    shown = picture(
        gpus,
        free,
        ("gpuscope_slurm_node_gpus", {**about, "state": "allocated"}, allocated),
        ("gpuscope_slurm_node_gpus", {**about, "state": "idle"}, 3.0 - allocated),
        [("gpuscope_slurm_job_gres_info", {**about, "slurm_job": "7", "index": one}, 1.0) for one in indices],
    )
    assert [row["state"] for row in shown["gpus"]] == expected
    assert shown["counts"]["free"] == expected.count("idle")
    assert shown["counts"]["in_use"] == expected.count("allocated")
    unused = {uuid for one in shown["findings"] if one["kind"] == "unused" for uuid in one["uuids"]}
    # Where an index is not one of the GPUs that the agent sees, no GPU is called unused.
    clear = set() if "7" in indices else {row["uuid"] for row in shown["gpus"] if row["state"] == "idle"}
    assert unused == clear


def test_a_shared_gpu_counts_once() -> None:
    labels = gpu_labels("0")
    pods = [allocation(labels, 1.0, pod=f"p{n}", namespace="ml", replica=str(n)) for n in range(4)]
    shown = picture(
        gpu("0", busy=0.9), pods, process(labels, 1, 1.0, user="ann"), process(labels, 2, user="bob")
    )
    assert shown["counts"] == {
        "gpus": 1, "instances": 0, "units": 1, "in_use": 1, "free": 0, "states": {"busy": 1},
    }  # fmt: skip
    assert shown["gpus"][0]["pods"] == ["ml/p0", "ml/p1", "ml/p2", "ml/p3"]


def test_a_split_gpu_counts_by_its_instances() -> None:
    first, of_first = instance("7", "0")
    _, of_second = instance("8", "0")
    board = without_list(gpu("0"))  # its instances have its processes
    shown = picture(board, of_first, of_second, process(first, 1, 1.0, user="ann"), gpu("1", busy=0.0))
    assert shown["counts"] == {
        "gpus": 2, "instances": 2, "units": 3, "in_use": 1, "free": 2, "states": {"busy": 1, "idle": 2},
    }  # fmt: skip


def test_a_gpu_that_was_given_as_a_whole_has_no_free_instance() -> None:
    first, of_first = instance("7", "0")
    _, of_second = instance("8", "0")
    shown = picture(
        gpu("0"), of_first, of_second, process(first, 1, 1.0), allocation(gpu_labels("0"), slurm_job="7")
    )
    assert states(shown) == {"0": ("busy", True), "0_7_0": ("busy", True), "0_8_0": ("allocated", True)}


def without_list(samples: list[Sample]) -> list[Sample]:
    """The driver refuses the list of processes: the agent has no count of them."""
    return [sample for sample in samples if sample[0] != "gpuscope_gpu_processes"]


def test_a_gpu_whose_processes_are_not_known_is_not_free() -> None:
    shown = picture(gpu("0", busy=0.0), without_list(gpu("1", busy=0.0)), without_list(gpu("2", busy=0.5)))
    assert states(shown) == {"0": ("idle", False), "1": ("stale", False), "2": ("busy", True)}
    assert (shown["counts"]["free"], shown["counts"]["in_use"]) == (1, 1)
    rows = {row["gpu"]: row for row in shown["gpus"]}
    assert rows["1"]["why"] == "processes_unknown"
    assert [rows[index].get("processes") for index in "012"] == [0, None, None], "absent is not 0"


def test_whose_it_is_and_what_is_wrong_with_it_is_known_without_the_list() -> None:
    given_away = picture(without_list(gpu("0", busy=0.0)), allocation(gpu_labels("0"), slurm_job="7"))
    assert states(given_away) == {"0": ("allocated", True)}
    assert given_away["findings"] == [], "nobody knows whether the job has a process on it"
    failed = ("gpuscope_gpu_row_remap_failed", gpu_labels("0"), 1.0)
    assert states(picture(without_list(gpu("0", busy=0.0)), failed)) == {"0": ("sick", False)}


def test_a_board_is_not_free_while_the_processes_of_an_instance_are_not_known() -> None:
    board = without_list(gpu("0"))
    first, of_first = instance("7", "0")
    _, of_second = instance("8", "0")
    shown = picture(board, of_first, without_list(of_second))
    assert states(shown) == {"0": ("stale", False), "0_7_0": ("idle", False), "0_8_0": ("stale", False)}
    assert shown["gpus"][0].get("why") == "processes_unknown"
    assert shown["counts"]["free"] == 1
    shown = picture(board, of_first, without_list(of_second), process(first, 1, 1.0))
    assert states(shown) == {"0": ("busy", True), "0_7_0": ("busy", True), "0_8_0": ("stale", False)}


@pytest.mark.parametrize("count", [2.0, float("nan"), float("inf"), -1.0])
def test_a_process_whose_owner_is_being_looked_up_holds_its_gpu(count: float) -> None:
    """It is counted, and has no series yet. A count that is none says nothing."""
    counted = ("gpuscope_gpu_processes", {**gpu_labels("0"), "state": "unknown"}, count)
    shown = picture(gpu("0", busy=0.0), counted)
    expected = ("busy", True, 2) if count == 2.0 else ("stale", False, None)
    row = shown["gpus"][0]
    assert (row["state"], row["in_use"], row.get("processes")) == expected


@pytest.mark.parametrize("family", ["dcgm", "nvidia_smi"])
def test_a_gpu_of_another_exporter_is_in_no_state(family: str) -> None:
    """dcgm-exporter and nvidia_gpu_exporter have no list of processes, and no series that the picture reads:
    their GPUs are neither free nor stale, and they do not change those of an agent."""
    text = (Path(__file__).parents[1] / "golden" / "models" / f"h100.{family}.prom").read_bytes()
    series: list[tuple[str, dict[str, str]]] = []

    def remember(pairs: Sequence[tuple[str, str]]) -> int:
        labels = dict(pairs)
        series.append((labels.pop("__name__"), {**labels, "instance": "other:9400"}))
        return len(series) - 1

    parsed = SeriesCache(remember).parse(text)
    foreign: list[Sample] = [
        (*series[place], value) for place, value in zip(parsed.ids, parsed.values, strict=True)
    ]
    assert len(foreign) > 20
    alone = fleet_state(foreign, now=NOW, source="test")
    assert (alone["nodes"], alone["gpus"], alone["findings"]) == ([], [], [])
    shown = picture(gpu("0", busy=0.0), foreign)
    assert states(shown) == {"0": ("idle", False)}
    assert shown["counts"]["units"] == 1


def test_a_gpu_that_is_not_read_is_neither_in_use_nor_free() -> None:
    labels = gpu_labels("0")
    shown = picture(gpu("0", up=0.0), process(labels, 1, 1.0), allocation(labels, 1.0, slurm_job="7"))
    assert states(shown) == {"0": ("lost", False)}
    assert (shown["counts"]["free"], shown["counts"]["in_use"]) == (0, 0)


def test_a_sick_gpu_may_be_in_use() -> None:
    labels = gpu_labels("0")
    failed = ("gpuscope_gpu_row_remap_failed", labels, 1.0)
    assert states(picture(gpu("0"), failed, process(labels, 1, 1.0))) == {"0": ("sick", True)}
    assert states(picture(gpu("0"), failed)) == {"0": ("sick", False)}


rows = st.lists(
    st.builds(
        lambda node, index, parent, state, used: CountedGpu(
            node, f"{parent}{index}", parent, state.value, used and state not in UNKNOWN
        ),
        st.sampled_from("ab"),
        st.integers(0, 3),
        st.sampled_from(["", "", "0", "1", "9"]),
        st.sampled_from(WORST_FIRST),
        st.booleans(),
    ),
    unique_by=lambda row: (row.node, row.uuid, row.parent),
)


@given(rows)
def test_every_unit_counts_once(listed: list[CountedGpu]) -> None:
    counts = count_gpus(listed)
    split = {(row.node, row.parent) for row in listed if row.parent}
    assert counts.gpus + counts.instances == len(listed)
    assert counts.units == len(listed) - sum((row.node, row.uuid) in split for row in listed)
    assert counts.in_use + sum(counts.states[state] for state in UNKNOWN) <= counts.units
    assert count_gpus(reversed(listed)) == counts, "the order says nothing"
    alone = [count_gpus(row for row in listed if row.node == name) for name in "ab"]
    assert sum((one.states for one in alone), Counter()) == counts.states, "nodes add up to the fleet"
