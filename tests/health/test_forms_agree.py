"""Each check's live form and its PromQL form, over the same random fleets: they must see the same trouble."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope.health.check import Check, Subject
from gpuscope.health.checks import CHECKS, LIVE_CHECKS
from gpuscope.health.facts import LABELLED, FleetFacts, Sample, sort_samples
from gpuscope.promql import Engine, Vector
from gpuscope.promql.parse import parse
from tests.examples import examples
from tests.promql.memory import MemoryStorage

NOW = 1_800_000_000.0
NODES = ("n1:9400", "n2:9400")

LABEL_VALUES = {
    "gpuscope_gpu_throttle_reason": ("hw_slowdown", "sw_power_cap", "gpu_idle", "hw_thermal_slowdown"),
    "gpuscope_gpu_xid_last_timestamp_seconds": ("13", "48", "63", "74", "79", "119", "154"),
    "gpuscope_gpu_ecc_errors_total": ("uncorrected,volatile", "uncorrected,aggregate", "corrected,volatile"),
    "gpuscope_gpu_temperature_celsius": ("gpu", "memory"),
    "gpuscope_gpu_temperature_threshold_celsius": ("slowdown", "memory_max", "shutdown"),
    "gpuscope_gpu_power_limit_watts": ("enforced", "default", "max"),
    "gpuscope_gpu_row_remap_banks": ("none", "max"),
    "gpuscope_gpu_retired_pages": ("single_bit", "double_bit"),
    "gpuscope_gpu_fan_speed_ratio": ("0", "1"),
    "gpuscope_gpu_processes": ("active", "idle"),
    "gpuscope_owner_unattributed_memory_bytes": ("user", "pod"),
    "gpuscope_source_up": ("nvml", "host"),
    "gpuscope_source_duration_seconds": ("nvml", "host"),
}
FLAGS = (0.0, 1.0)
GPU_VALUES: dict[str, tuple[float, ...]] = {
    "gpuscope_gpu_up": FLAGS,
    "gpuscope_gpu_unallocated_processes": (0.0, 2.0),
    "gpuscope_gpu_recovery_action": (0.0, 1.0, 7.0),
    "gpuscope_gpu_xid_last_timestamp_seconds": (NOW - 5, NOW - 3599, NOW - 3600, NOW - 86400),
    "gpuscope_gpu_ecc_errors_total": (0.0, 3.0),
    "gpuscope_gpu_ecc_sram_threshold_exceeded": FLAGS,
    "gpuscope_gpu_row_remap_pending": FLAGS,
    "gpuscope_gpu_row_remap_failed": FLAGS,
    "gpuscope_gpu_row_remap_banks": (0.0, 12.0),
    "gpuscope_gpu_retired_pages": (0.0, 30.0, 60.0),
    "gpuscope_gpu_retired_pages_pending": FLAGS,
    "gpuscope_gpu_ecc_enabled": FLAGS,
    "gpuscope_gpu_ecc_pending": FLAGS,
    "gpuscope_gpu_throttle_reason": FLAGS,
    "gpuscope_gpu_temperature_celsius": (40.0, 61.0, 84.0, 87.0, 95.0),
    "gpuscope_gpu_temperature_threshold_celsius": (87.0, 98.0),
    "gpuscope_gpu_temperature_margin_celsius": (-1.0, 0.0, 20.0),
    "gpuscope_gpu_power_limit_watts": (300.0, 665.0, 700.0),
    "gpuscope_gpu_fan_speed_ratio": (0.0, 0.4),
    "gpuscope_gpu_pcie_link_width": (8.0, 16.0),
    "gpuscope_gpu_pcie_link_width_max": (16.0,),
    "gpuscope_gpu_fabric_state": (0.0, 1.0, 2.0, 3.0),
    "gpuscope_gpu_fabric_status": (0.0, 9.0),
    "gpuscope_gpu_persistence_mode": FLAGS,
    "gpuscope_gpu_memory_used_bytes": (0.0, 79e9, 80e9),
    "gpuscope_gpu_memory_total_bytes": (80e9,),
    "gpuscope_gpu_utilization_ratio": (0.0, 0.009, 0.5, 1.0),
    "gpuscope_owner_unattributed_memory_bytes": (0.0, 1e9, 2e9),
    "gpuscope_gpu_utilization_minute_ratio": (0.0, 0.59, 0.6, 0.9, 1.0),
    "gpuscope_gpu_power_minute_watts": (100.0, 245.0, 300.0, 350.0, 650.0),
    "gpuscope_gpu_hung_since_seconds": (NOW - 5, NOW - 600, NOW - 601),
    "gpuscope_gpu_processes": (0.0, 3.0),
    "gpuscope_gpu_free_since_seconds": (NOW - 5, NOW - 86400, NOW - 86401),
}
NODE_VALUES: dict[str, tuple[float, ...]] = {
    "up": FLAGS,
    "gpuscope_agent_snapshot_timestamp_seconds": (NOW - 1, NOW - 60, NOW - 61),
    "gpuscope_source_up": FLAGS,
    "gpuscope_source_duration_seconds": (0.1, 5.0, 6.0),
    "gpuscope_gpus_seen": (7.0, 8.0),
    "gpuscope_gpus_expected": (8.0,),
    "node_memory_MemAvailable_bytes": (5e9, 10e9, 90e9),
    "node_memory_MemTotal_bytes": (100e9,),
}
PROCESS_VALUES: dict[str, tuple[float, ...]] = {
    "gpuscope_process_active": FLAGS,
    "gpuscope_process_idle_since_seconds": (NOW - 59, NOW - 60, NOW - 899, NOW - 901, NOW - 7200),
    "gpuscope_process_start_time_seconds": (NOW - 60, NOW - 8 * 86400),
    "gpuscope_process_io_wait_ratio": (0.0, 0.3, 0.31),
    "gpuscope_process_network_wait_ratio": (0.0, 0.5, 0.51),
    "gpuscope_process_busiest_thread_ratio": (0.0, 0.9, 0.91),
}


def _numbers(draw: st.DrawFn, labels: dict[str, str], table: dict[str, tuple[float, ...]]) -> Iterator[Sample]:
    """For each metric a value, or none: what a card cannot give is absent."""
    for metric, values in table.items():
        further = LABELLED.get(metric, ())
        for label_values in LABEL_VALUES.get(metric, ("",)):
            if draw(st.booleans()):
                more = dict(zip(further, label_values.split(","), strict=bool(further)))
                yield metric, {**labels, **more}, draw(st.sampled_from(values))


@st.composite
def fleets(draw: st.DrawFn) -> list[Sample]:
    samples: list[Sample] = []
    for node in NODES:
        samples += _numbers(draw, {"instance": node}, NODE_VALUES)
        for gpu in range(draw(st.sampled_from((0, 2, 4)))):
            labels = {"instance": node, "gpu": str(gpu), "uuid": f"GPU-{node[:2]}-{gpu}"}
            samples += _numbers(draw, labels, GPU_VALUES)
            for pid in range(draw(st.integers(0, 2))):
                samples += _process(draw, {**labels, "pid": str(pid)})
            if draw(st.booleans()):
                holder = {"pod": "p", "namespace": "ns", "resource": "nvidia.com/gpu"}
                samples.append(("gpuscope_allocation_used", {**labels, **holder}, draw(st.sampled_from(FLAGS))))
    return samples


def _process(draw: st.DrawFn, labels: dict[str, str]) -> list[Sample]:
    owner: dict[str, str] = draw(
        st.sampled_from(
            (
                {"user": "alice"},
                {"user": "root", "namespace": "ml", "pod": "train-0"},
                {"user": "bob", "slurm_job": "17"},
            )
        )
    )
    labels = {**labels, **owner}
    if draw(st.booleans()):
        labels["command"] = draw(st.sampled_from(("python3", "python3", "ipython")))
    return [
        ("gpuscope_process_memory_bytes", labels, 1e9),
        *_numbers(draw, labels, PROCESS_VALUES),
    ]


def _subjects_live(check: Check, fleet: FleetFacts) -> set[tuple[str, ...]]:
    if check.live_fleet is not None:
        return set(check.live_fleet(fleet, fleet.now))
    assert check.live is not None
    if check.subject is Subject.GPU:
        return {key for key, gpu in fleet.gpus.items() if check.live(gpu, fleet.now)}
    if check.subject is Subject.PROCESS:
        return {key for key, process in fleet.processes.items() if check.live(process, fleet.now)}
    return {(key,) for key, node in fleet.nodes.items() if check.live(node, fleet.now)}


IDENTITY = {Subject.GPU: ("instance", "uuid"), Subject.PROCESS: ("instance", "uuid", "pid")}


def _subjects_asked(check: Check, engine: Engine) -> set[tuple[str, ...]]:
    answer = engine.instant(check.promql, int(NOW * 1000))
    assert isinstance(answer, Vector)
    names = IDENTITY.get(check.subject, ("instance",))
    return {tuple(dict(labels).get(name, "") for name in names) for labels in answer.labels}


def _one_of_two_works() -> list[Sample]:
    """A process group on two GPUs of which one works: chance alone rarely makes one."""
    samples: list[Sample] = []
    for gpu in (0, 1):
        identity = {"instance": NODES[0], "gpu": str(gpu), "uuid": f"GPU-{gpu}", "pid": str(gpu)}
        samples.append(("gpuscope_process_active", {**identity, "user": "alice"}, float(gpu)))
        if gpu == 0:
            samples.append(("gpuscope_process_idle_since_seconds", {**identity, "user": "alice"}, NOW - 3600))
        samples.append(("gpuscope_process_info", {**identity, "group": "100"}, 1.0))
    return samples


def _one_rank_waits() -> list[Sample]:
    """A job on two nodes: one GPU spins, the other one works."""
    samples: list[Sample] = []
    for instance, watts in zip(NODES, (150.0, 650.0), strict=True):
        identity = {"instance": instance, "gpu": "0", "uuid": f"GPU-{instance[:2]}"}
        holder = {**identity, "pid": "1", "user": "bob", "slurm_job": "17"}
        samples += [
            ("gpuscope_process_memory_bytes", holder, 1e9),
            ("gpuscope_gpu_utilization_minute_ratio", identity, 1.0),
            ("gpuscope_gpu_power_minute_watts", identity, watts),
            ("gpuscope_gpu_power_limit_watts", {**identity, "limit": "enforced"}, 700.0),
        ]
    return samples


def test_live_and_promql_see_the_same() -> None:
    reached = set()

    @settings(max_examples=examples(100), derandomize=True)
    @example(_one_of_two_works())
    @example(_one_rank_waits())
    @given(fleets())
    def compare(samples: list[Sample]) -> None:
        storage = MemoryStorage()
        for metric, labels, value in samples:
            storage.add({"__name__": metric, **labels}, [(int(NOW * 1000), value)])
        engine, fleet = Engine(storage), sort_samples(samples, NOW)
        for check in LIVE_CHECKS:
            seen = _subjects_live(check, fleet)
            assert seen == _subjects_asked(check, engine), check.kind
            if seen:
                reached.add(check.kind)

    compare()
    # A check that never fires would agree with anything. The fast profile has too few fleets to reach them all.
    if examples(100) == 100:
        assert reached == {check.kind for check in LIVE_CHECKS}


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.kind)
def test_a_row_is_complete(check: Check) -> None:
    parse(check.promql)
    assert (check.live is None and check.live_fleet is None) == bool(check.one_form_because)
    assert check.live is None or check.live_fleet is None
    assert check.meaning.endswith(".")
    assert check.next_step
    assert set(check.inhibited_by) <= set(CHECKS)
    assert check.kind not in check.inhibited_by


def test_names_are_unique() -> None:
    assert len({check.alert for check in CHECKS.values()}) == len(CHECKS)
