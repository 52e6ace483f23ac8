"""Every scenario is seen where its line in the table says, from when it was asked for, and nowhere else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.demo import SCENARIOS, DemoFleet, check_settings, open_node
from gpuscope.demo.scenarios import parse_scenario
from gpuscope.model.demo_model import demo_models
from gpuscope.model.readings import ABSENT, Device, Process, Reading
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import THROTTLE_BITS, own
from tests.examples import examples
from tests.fakes import make_settings

NOW = 1_800_000_000.0


def fleet(*scenario: str, **changes: Any) -> DemoFleet:
    return DemoFleet(make_settings(scenario=scenario, demo_nodes=2, **changes), started_at=NOW)


def read(*scenario: str, after: float = 60.0, **changes: Any) -> Reading:
    return fleet(*scenario, **changes).reading(0, NOW + after, NOW)


def processes_of(reading: Reading, gpu: Device) -> list[Process]:
    assert reading.processes is not ABSENT
    return [process for process in reading.processes if process.gpu_uuid == gpu.uuid]


def test_one_works_and_seven_idle_in_one_process() -> None:
    reading = read("one-works")
    means = [device.utilization_mean_ratio for device in reading.devices]
    assert means[0] > 0.2  # type: ignore[operator]
    assert means[1:] == [0.0] * 7
    assert {(p.pid, p.started_at) for p in reading.processes} == {  # type: ignore[union-attr]
        (reading.processes[0].pid, NOW - 8 * 3600)  # type: ignore[index]
    }
    assert len(reading.processes) == 8  # type: ignore[arg-type]


def test_held_idle_has_memory_and_an_owner_and_does_nothing() -> None:
    held = read("held-idle").devices[4:]
    reading = read("held-idle")
    for device in held:
        assert device.utilization_ratio == 0.0
        assert device.memory_used_bytes > 0.5 * device.memory_total_bytes  # type: ignore[operator]
        (process,) = processes_of(reading, device)
        assert process.owner.job is not ABSENT
        assert process.sm_ratio == 0.0


def test_thermal_slows_down_and_counts_it() -> None:
    gpu, later = (read("thermal", after=after).devices[2] for after in (0.0, 60.0))
    assert gpu.temperature_celsius["gpu"] >= gpu.temperature_threshold_celsius["slowdown"]
    assert own(gpu).throttle_mask & THROTTLE_BITS["sw_thermal_slowdown"]  # type: ignore[operator]
    assert gpu.clock_hertz["sm"] < 0.6 * gpu.clock_max_hertz["sm"]
    assert gpu.utilization_ratio == 1.0
    gained = {r: later.throttled_seconds[r] - gpu.throttled_seconds[r] for r in gpu.throttled_seconds}
    assert gained["sw_thermal_slowdown"] == pytest.approx(60.0, abs=1e-3)
    assert gained["hw_thermal_slowdown"] == pytest.approx(20.0, abs=1e-3)


def test_thermal_on_cue_warms_first() -> None:
    temperatures = [
        read("thermal@+2m", after=after).devices[2].temperature_celsius["gpu"] for after in (119, 150, 200)
    ]
    assert temperatures == sorted(set(temperatures))
    assert temperatures[0] < 80 < 89 <= temperatures[2]


def test_xid79_is_reported_and_the_gpu_lost() -> None:
    reading = read("xid79")
    assert [
        (int(event.code), event.at, event.gpu_uuid) for event in reading.errors if int(event.code) == 79
    ] == [(79, NOW, reading.devices[3].uuid)]
    lost, next_to_it = reading.devices[3], reading.devices[4]
    assert lost.lost
    assert (lost.index, lost.model) == (3, next_to_it.model)  # as from NVML: who it was is remembered
    assert lost.utilization_ratio is ABSENT
    assert lost.memory_total_bytes is ABSENT
    assert not reading.failures, "as with the driver: the loss itself is told, in one line"
    assert processes_of(reading, reading.devices[3]) == []
    assert [device.lost for device in reading.devices].count(True) == 1


def test_an_xid_reaches_a_source_exactly_once() -> None:
    now = [NOW]
    source = open_node(make_settings(scenario=("xid79",)), 0, lambda: now[0])
    found = 0
    for _ in range(10):
        found += sum(int(event.code) == 79 for event in source.read(frozenset(Tier)).errors)
        now[0] += 0.3
    assert found == 1


def test_a_lost_gpu_says_nothing() -> None:
    reading = read("lost-gpu")
    assert reading.devices[5].lost
    assert reading.devices[5].utilization_ratio is ABSENT
    assert [event for event in reading.errors if event.gpu_uuid == reading.devices[5].uuid] == []


@pytest.mark.parametrize("model", ["h100", "v100"])
def test_ecc_storm_counts_up(model: str) -> None:
    early, late = (read("ecc-storm", after=after, demo_model=model) for after in (5.0, 600.0))
    one, two = early.devices[1], late.devices[1]
    assert 0 < one.ecc_errors["corrected", "volatile"] < two.ecc_errors["corrected", "volatile"]
    assert 0 < one.ecc_errors["uncorrected", "volatile"] < two.ecc_errors["uncorrected", "volatile"]
    assert one.ecc_location_errors["uncorrected", "volatile", "device_memory"] > 0
    expected = {48, 63, 94} if model == "h100" else {48, 63}
    assert expected <= {int(event.code) for event in late.errors if event.gpu_uuid == two.uuid}
    assert (own(two).row_remap_pending if model == "h100" else own(two).retired_pages_pending) == 1.0
    assert early.devices[0].ecc_errors["corrected", "volatile"] == 0.0


def test_ecc_storm_cannot_happen_without_ecc() -> None:
    assert not read("ecc-storm", demo_model="rtx4090").devices[1].ecc_errors


def test_pcie_x8_has_half_its_lanes() -> None:
    gpu, later = (read("pcie-x8", after=after).devices[6] for after in (0.0, 60.0))
    assert (gpu.pcie_link_width, gpu.pcie_link_width_max) == (8.0, 16.0)
    assert later.pcie_replays > gpu.pcie_replays > 0  # type: ignore[operator]
    assert read("pcie-x8").devices[0].pcie_link_width == 16.0


def test_memory_leak_grows_until_the_process_dies() -> None:
    simulated = fleet("memory-leak")
    seen = []
    for minute in range(0, 70, 5):
        reading = simulated.reading(0, NOW + 60 * minute + 30)
        (process,) = processes_of(reading, reading.devices[4])
        seen.append((process.pid, process.memory_bytes))
    assert len({pid for pid, _ in seen}) == 3
    first = [memory for pid, memory in seen if pid == seen[0][0]]
    assert len(first) == 6
    assert first == sorted(first)  # type: ignore[type-var]
    assert first[-1] > 3 * first[0]  # type: ignore[operator]


def test_a_burst_is_three_seconds_a_minute() -> None:
    simulated = fleet("burst")
    for since, until in ((0.0, 15.0), (15.0, 30.0), (0.0, 60.0), (30.0, 630.0)):
        gpu = simulated.reading(0, NOW + until, NOW + since).devices[0]
        assert gpu.utilization_mean_ratio is not ABSENT
        expected = 3.0 * (until - since) / 60 if until - since >= 60 else 3.0 if since == 0 else 0.0
        assert gpu.utilization_mean_ratio * (until - since) == pytest.approx(expected, abs=1e-4)
    assert simulated.reading(0, NOW + 1).devices[0].utilization_ratio == 1.0
    assert simulated.reading(0, NOW + 30).devices[0].utilization_ratio == 0.0


def test_a_slow_sibling_works_as_much_as_the_others_at_a_lower_clock() -> None:
    devices = read("slow-sibling").devices
    clocks = [device.clock_hertz["sm"] for device in devices]
    assert clocks[3] == pytest.approx(0.6 * clocks[0], rel=0.02)
    assert len(set(clocks)) == 2
    assert {device.utilization_ratio for device in devices} == {0.97}
    assert own(devices[3]).throttle_mask == 0


def test_orphan_memory_belongs_to_no_process() -> None:
    reading = read("orphan-memory")
    gpu = reading.devices[6]
    assert processes_of(reading, gpu) == []
    assert gpu.memory_used_bytes == pytest.approx(0.5 * gpu.memory_total_bytes, rel=0.02)  # type: ignore[operator]
    assert gpu.utilization_ratio == 0.0


def test_a_failing_gpu_ends_every_program_with_an_xid() -> None:
    simulated = fleet("failing-gpu")
    pids, xids = set(), []
    for minute in range(0, 101, 5):
        reading = simulated.reading(0, NOW + 60 * minute + 1, NOW + 60 * minute - 299)
        (process,) = processes_of(reading, reading.devices[1])
        pids.add((process.pid, process.owner.job))
        xids += [int(event.code) for event in reading.errors if event.gpu_uuid == reading.devices[1].uuid]
    assert len(pids) == 5
    assert xids == [31] * 4


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_happens_before_its_cue_nor_on_other_nodes(name: str) -> None:
    plain, played = fleet(), fleet(f"{name}@+2m")
    assert played.reading(0, NOW + 119, NOW) == plain.reading(0, NOW + 119, NOW)
    assert played.reading(1, NOW + 500, NOW) == plain.reading(1, NOW + 500, NOW)
    if name != "none":
        assert played.reading(0, NOW + 180, NOW) != plain.reading(0, NOW + 180, NOW)


@pytest.mark.parametrize("model", [*demo_models(), "h100-mig"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_all_scenarios_at_once_play_on_every_model(model: str, gpus: int) -> None:
    reading = read(*SCENARIOS, demo_model=model, demo_gpus=gpus)
    assert len(reading.devices) == gpus
    for device in reading.devices:
        if not device.lost:
            assert device.memory_free_bytes >= 0  # type: ignore[operator]
            assert device.power_instant_watts <= device.power_limit_watts["max"]  # type: ignore[operator]


def test_several_scenarios_work_together() -> None:
    reading = read("xid79", "pcie-x8", "thermal@+10s")
    assert reading.devices[3].lost
    assert reading.devices[6].pcie_link_width == 8.0
    assert reading.devices[2].temperature_celsius["gpu"] > reading.devices[6].temperature_celsius["gpu"]


def test_an_unknown_scenario_is_answered_with_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        check_settings(make_settings(scenario=("thermal", "meltdown")))
    assert "'meltdown'" in str(caught.value)
    for scenario in SCENARIOS.values():
        assert scenario.name in str(caught.value)
        assert scenario.meaning in str(caught.value)


@pytest.mark.parametrize("text", ["thermal@2m", "thermal@+", "thermal@+soon", "thermal@", "thermal@+-5s"])
def test_a_wrong_time_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="thermal@"):
        parse_scenario(text)


@settings(max_examples=examples(150))
@given(st.text(max_size=20))
def test_no_text_is_more_than_a_usage_error(text: str) -> None:
    for candidate in (text, "burst@" + text, "burst@+" + text):
        with suppress(UsageError):
            parse_scenario(candidate)
