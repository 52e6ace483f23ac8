from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.checks.facts import NOTHING_MISSING, Sample
from gpuscope.serve.api_types.live_json import LivePicture
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import LIVE_METRICS, by_node
from gpuscope.serve.live.live_fleet import PushedTargets
from gpuscope.serve.live.picture import live_picture
from gpuscope.serve.live.picture_differences import to_tables
from tests.server.live.pictures import fleet_state

NOW = 1_700_000_000.0
LABELS = {"gpu": "0", "uuid": "GPU-0", "instance": "host:9400"}


def node(at: float = NOW) -> list[Sample]:
    return [
        ("gpuscope_agent_info", {"instance": "host:9400", "node": "gpu-a01", "simulated": "false"}, 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", {"instance": "host:9400"}, at),
        ("gpuscope_gpu_info", {**LABELS, "model": "H100", "node": "gpu-a01"}, 1.0),
        ("gpuscope_gpu_up", LABELS, 1.0),
        ("gpuscope_gpu_processes", {**LABELS, "state": "idle"}, 0.0),
    ]


def session(sm: float | None, idle_for: float = 70.0, **labels: str) -> list[Sample]:
    who = {**LABELS, "pid": "7", "user": "ann", "command": "python", **labels}
    samples: list[Sample] = [("gpuscope_process_memory_bytes", who, 5.0)]
    if sm is not None:
        samples.append(("gpuscope_process_sm_ratio", who, sm))
        samples.append(("gpuscope_process_active", who, float(sm > 0)))
        if sm == 0:
            samples.append(("gpuscope_process_idle_seconds", who, idle_for))
    samples.append(("gpuscope_process_start_time_seconds", who, NOW - 100))
    return samples


def the_gpu(*samples: Sample, at: float = NOW) -> dict[str, Any]:
    (gpu,) = fleet_state([*node(at), *samples], now=NOW, source="test")["gpus"]
    return dict(gpu)


BUSY: Sample = ("gpuscope_gpu_utilization_ratio", LABELS, 0.9)
NOT_BUSY: Sample = ("gpuscope_gpu_utilization_ratio", LABELS, 0.0)
HOT: Sample = ("gpuscope_gpu_throttle_reason", {**LABELS, "reason": "sw_thermal_slowdown"}, 1.0)
CAPPED: Sample = ("gpuscope_gpu_throttle_reason", {**LABELS, "reason": "sw_power_cap"}, 1.0)
FAILED: Sample = ("gpuscope_gpu_row_remap_failed", LABELS, 1.0)
LOST: Sample = ("gpuscope_gpu_up", LABELS, 0.0)
XID: Sample = ("gpuscope_gpu_xid_age_seconds", {**LABELS, "xid": "79"}, 60.0)
PROGRAM_XID: Sample = ("gpuscope_gpu_xid_age_seconds", {**LABELS, "xid": "13"}, 60.0)
OLD_XID: Sample = ("gpuscope_gpu_xid_age_seconds", {**LABELS, "xid": "79"}, 86400.0)


@pytest.mark.parametrize(
    ("samples", "state", "why"),
    [
        ([NOT_BUSY], "idle", None),
        ([BUSY], "busy", None),
        ([NOT_BUSY, *session(0.0)], "held", None),
        ([NOT_BUSY, *session(0.5)], "busy", None),
        ([BUSY, CAPPED], "busy", None),
        ([BUSY, HOT], "throttled", "sw_thermal_slowdown"),
        ([BUSY, HOT, FAILED], "sick", "row_remap_failed"),
        ([BUSY, XID], "sick", "XID 79"),
        ([BUSY, OLD_XID], "busy", None),
        ([XID, LOST], "lost", "XID 79"),
        ([BUSY, PROGRAM_XID], "busy", None),
    ],
)
def test_the_worst_state_wins(samples: list[Sample], state: str, why: str | None) -> None:
    gpu = the_gpu(*samples)
    assert (gpu["state"], gpu.get("why")) == (state, why)


def test_old_numbers_are_stale_whatever_they_say() -> None:
    assert the_gpu(BUSY, HOT, at=NOW - 120)["state"] == "stale"
    assert the_gpu(LOST, at=NOW - 120)["state"] == "lost"


def test_a_zero_is_shown_and_an_absent_number_has_no_key() -> None:
    gpu = the_gpu(NOT_BUSY)
    assert gpu["busy"] == 0.0
    assert "power" not in gpu
    assert gpu["node"] == "gpu-a01", "named by the info series, not by the scrape address"


def test_a_nodes_cpu_and_sources_where_it_has_them() -> None:
    """The CPU was shown and never sent, and without a list of sources the page threw."""
    cpu: Sample = ("gpuscope_node_cpu_utilization_ratio", {"instance": "host:9400"}, 0.0)
    (told,) = fleet_state([*node(), cpu], now=NOW, source="t")["nodes"]
    assert (told["cpu"], told["sources"]) == (0.0, [])
    (untold,) = fleet_state(node(), now=NOW, source="t")["nodes"]
    assert "cpu" not in untold


def test_who_holds_it_since_when() -> None:
    state = fleet_state([*node(), NOT_BUSY, *session(0.0, pod="train-0", namespace="ml")], now=NOW, source="t")
    (held,) = state["sessions"]
    assert held == {
        "uuid": "GPU-0", "gpu": "0", "pid": 7, "memory": 5.0, "sm": 0.0, "since": NOW - 100, "node": "gpu-a01",
        "idle_since": NOW - 70,
        "command": "python", "user": "ann", "namespace": "ml", "pod": "train-0", "state": "idle",
    }  # fmt: skip
    assert state["gpus"][0]["users"] == ["ann"]
    assert state["gpus"][0]["since"] == NOW - 70, "when it last worked, not when it started"
    unknown = fleet_state([*node(), *session(None)], now=NOW, source="t")["sessions"][0]
    assert unknown["state"] == "unknown"
    older = fleet_state([*node(), *session(None, state="idle")], now=NOW, source="t")["sessions"][0]
    assert older["state"] == "idle", "an agent of an earlier version says it in a label"


def test_a_mig_instance_has_its_gpus_model_and_wakes_it() -> None:
    instance = {"gpu": "0_7_0", "uuid": "MIG-7", "instance": "host:9400"}
    state = fleet_state(
        [
            *node(),
            ("gpuscope_mig_info", {**instance, "parent_uuid": "GPU-0", "profile": "1g.10gb"}, 1.0),
            ("gpuscope_gpu_sm_active_ratio", instance, 0.4),
        ],
        now=NOW,
        source="t",
    )
    parent, child = state["gpus"]
    assert (child["model"], child["profile"], child["state"], parent["state"]) == (
        "H100",
        "1g.10gb",
        "busy",
        "busy",
    )


def under(instance: str, samples: list[Sample]) -> list[Sample]:
    return [(metric, {**labels, "instance": instance}, value) for metric, labels, value in samples]


def test_a_node_that_pushes_and_is_scraped_is_counted_once() -> None:
    """With its sessions and findings: two rows of one process end the live stream, and two findings of one
    idle GPU cost twice as much."""
    scraped = [*node(), NOT_BUSY, *session(0.0, idle_for=3600.0), XID]
    alone = fleet_state(scraped, now=NOW, source="test")
    twice = fleet_state([*scraped, *under("gpu-a01", scraped)], now=NOW, source="test")
    assert {one["kind"] for one in alone["findings"]} == {"held_idle", "xid_hardware"}
    for rows in ("gpus", "sessions", "findings", "counts"):
        assert twice[rows] == alone[rows]


def test_of_two_reports_of_a_gpu_the_fresh_one_is_shown() -> None:
    """An agent that was scraped and now pushes: the old series stay for five minutes."""
    samples = [*node(NOW - 200), BUSY, *under("gpu-a01", [*node(), NOT_BUSY])]
    assert [gpu["state"] for gpu in fleet_state(samples, now=NOW, source="test")["gpus"]] == ["idle"]


@pytest.mark.parametrize(
    ("ahead", "shown"), [([3600.0], NOW), ([3600.0, -20.0], NOW - 20), ([0.0, -20.0], NOW)]
)
def test_a_clock_that_is_ahead_makes_no_numbers_new(ahead: list[float], shown: float) -> None:
    nodes = [sample for n, by in enumerate(ahead) for sample in under(f"n{n}", node(NOW + by))]
    assert fleet_state(nodes, now=NOW, source="test")["taken_at"] == shown


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf"), 1e18, -1.0])
def test_a_time_that_is_none_breaks_neither_the_picture_nor_the_targets(time: float) -> None:
    """Of a node that pushes: every number of it may be any other."""
    shown = fleet_state([*node(time), *under("n2", node())], now=NOW, source="test")
    assert [row.get("taken_at") for row in shown["nodes"]] == [None, NOW]
    assert shown["taken_at"] == NOW

    async def newest() -> LivePicture:
        return shown

    targets = asyncio.run(PushedTargets(newest).targets_json(()))
    assert [one["labels"]["instance"] for one in targets] == ["host:9400", "n2"]


def test_nothing_at_all() -> None:
    state = fleet_state([], now=NOW, source="t")
    assert (state["gpus"], state["nodes"], state["sessions"], state["simulated"]) == ([], [], [], False)
    assert "taken_at" not in state


@pytest.mark.parametrize("text", ["¹", "٣", "9" * 5000, "9" * 19, ""])
def test_numbers_that_are_none(text: str) -> None:
    """One hostile label took the whole live view away."""
    samples = [*node(), *session(0.0, pid=text), ("gpuscope_gpu_up", {**LABELS, "gpu": text, "uuid": "x"}, 1.0)]
    assert orjson.dumps(fleet_state(samples, now=NOW, source="t"))


def test_slurm_series_of_somebody_else() -> None:
    samples: list[Sample] = [
        *node(),
        ("gpuscope_slurm_job_gres_info", {}, 1.0),
        ("gpuscope_slurm_node_gpus", {"gres": "gpu", "node": "n"}, float("nan")),
    ]
    assert fleet_state(samples, now=NOW, source="t")["nodes"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(LIVE_METRICS) | st.text(max_size=5),
            st.dictionaries(
                st.sampled_from(
                    ["gpu", "uuid", "pid", "instance", "node", "user", "pod", "xid", "parent_uuid"]
                ),
                st.text(max_size=4) | st.sampled_from(["79", "13", "9" * 30]),
            ),
            st.floats(),
        ),
        max_size=12,
    )
)
def test_hostile_labels_never_break_it(samples: list[Sample]) -> None:
    state = fleet_state(samples, now=NOW, source="t")
    assert set(state) <= set(LivePicture.__annotations__)
    assert orjson.dumps(state)


def large_nodes(count: int) -> dict[str, list[Sample]]:
    """Each is a node, a GPU and a process."""
    names = [{"instance": f"host-{number}"} for number in range(count)]
    return by_node(
        (name, {**labels, **one}, value) for one in names for name, labels, value in [*node(), *session(0.9)]
    )


def test_the_last_nodes_of_a_fleet_that_is_too_large_are_left_out() -> None:
    judge = FleetJudge(max_subjects=9)
    before = LIMITS_REACHED.counts()["live_max_subjects"]
    assert judge.judge(large_nodes(3), NOTHING_MISSING, NOW).left_out == 0
    judged = judge.judge(large_nodes(5), NOTHING_MISSING, NOW + 1)
    assert list(judged.nodes) == ["host-0", "host-1", "host-2"]
    picture = live_picture(judged, "test")
    assert (picture["left_out"], len(picture["nodes"])) == (2, 3)
    assert LIMITS_REACHED.counts()["live_max_subjects"] == before + 1
    fewer = {name: samples for name, samples in large_nodes(5).items() if name != "host-1"}
    assert list(judge.judge(fewer, NOTHING_MISSING, NOW + 2).nodes) == ["host-0", "host-2", "host-3"]


def test_a_node_that_is_too_large_by_itself_leaves_room_for_the_others() -> None:
    nodes = large_nodes(3)
    pids = [{**LABELS, "instance": "host-1", "pid": str(pid)} for pid in range(9)]
    nodes["host-1"] += [("gpuscope_process_memory_bytes", labels, 1.0) for labels in pids]
    judged = FleetJudge(max_subjects=9).judge(nodes, NOTHING_MISSING, NOW)
    assert (list(judged.nodes), judged.left_out) == (["host-0", "host-2"], 1)


def test_a_long_label_is_cut_and_stays_the_only_one() -> None:
    """Two GPUs, two processes and two nodes whose texts differ in the last of 64 KiB."""
    long = "x" * 65_000
    samples: list[Sample] = []
    for last in "ab":
        own = {**LABELS, "uuid": long + last, "instance": f"i{long}{last}"}
        about = {**own, "model": long, "node": long + last}
        process = {**own, "pid": long + last, "user": long + last, "command": long, "slurm_job": long + last}
        samples += [
            (name, {**labels, **(about if "uuid" in labels else {"instance": own["instance"]})}, value)
            for name, labels, value in node()
        ]
        samples += [
            ("gpuscope_process_memory_bytes", process, 1.0),
            ("gpuscope_process_active", process, 0.0),
            ("gpuscope_process_idle_seconds", process, 7200.0),
            ("gpuscope_gpu_xid_age_seconds", {**own, "xid": "79"}, 60.0),
            ("gpuscope_allocation_used", {**own, "slurm_job": long + last}, 0.0),
        ]
    shown = fleet_state(samples, now=NOW, source="test")
    assert len(orjson.dumps(shown)) < 100_000
    for rows, key in ((shown["nodes"], "instance"), (shown["gpus"], "uuid"), (shown["sessions"], "pid")):
        assert len({dict(row)[key] for row in rows}) == len(rows) == 2
    assert len({job["job"] for job in shown["jobs"]}) == 2
    assert {one["uuid"] for one in shown["sessions"]} == {one["uuid"] for one in shown["gpus"]}
    assert {one for row in shown["gpus"] for one in row["users"]} == {one["user"] for one in shown["sessions"]}
    found = shown["findings"]
    assert {uuid for one in found for uuid in one["uuids"]} == {one["uuid"] for one in shown["gpus"]}
    assert to_tables(shown).by_name["gpus"].keys == [one["uuid"] for one in shown["gpus"]]
