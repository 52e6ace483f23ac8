"""The simulated fleet: the same for a seed, exact in its counters, and as silent as the model it plays."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.demo import SOURCE, DemoFleet, open_node
from gpuscope.demo.fleet import MIX
from gpuscope.model.demo_model import demo_models
from gpuscope.model.readings import ABSENT, Device, Instance, Process, Reading
from gpuscope.model.source import Tier, load_source
from gpuscope.vendors.nvidia.demo_models import NvidiaModel
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.examples import examples

NOW = 1_800_000_000.0
ALL = frozenset(Tier)
times = st.floats(NOW - 30 * 86_400, NOW + 20 * 86_400)


def fleet(started_at: float = NOW, **changes: Any) -> DemoFleet:
    return DemoFleet(Settings(**({"demo_nodes": 4} | changes)), started_at=started_at)


FLEET = fleet(demo_nodes=len(MIX))


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a reading with its place."""
    if isinstance(value, bool | str) or value is ABSENT:
        return
    if isinstance(value, int | float):
        yield path, float(value)
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{path}[{key}]")
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from numbers(item, f"{path}.{place}")


def test_it_is_found_by_name_and_says_that_it_is_simulated(caplog: pytest.LogCaptureFixture) -> None:
    assert load_source("demo") is SOURCE
    with caplog.at_level(logging.INFO):
        source = SOURCE.open(Settings())
    assert "simulated" in caplog.text
    reading = source.read(ALL)
    assert reading.simulated
    assert len(reading.devices) == 8
    source.close()


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), times, st.integers(0, 3))
def test_a_seed_and_a_time_give_the_same_reading(seed: int, at: float, node: int) -> None:
    one, other = (fleet(seed=seed, demo_gpus=2) for _ in range(2))
    other.reading(node, at - 1234.5)  # what was read before leaves no trace
    assert one.reading(node, at, at - 5) == other.reading(node, at, at - 5)
    different = fleet(seed=seed + 1, demo_gpus=2).reading(node, at)
    assert {d.uuid for d in different.devices}.isdisjoint(d.uuid for d in one.reading(node, at).devices)


def test_a_program_started_later_finds_the_same_machines() -> None:
    at = NOW + 7 * 3600
    assert fleet(NOW).reading(0, at) == fleet(NOW + 6 * 3600).reading(0, at)


def test_names_are_unique_and_shaped_as_the_driver_shapes_them() -> None:
    devices = [d for node in range(len(MIX)) for d in FLEET.reading(node, NOW).devices]
    assert len({d.uuid for d in devices}) == len(devices)
    assert all(d.uuid.startswith("GPU-") and len(d.uuid) == 40 for d in devices)
    for node in range(len(MIX)):
        buses = [d.pci_bus_id for d in FLEET.reading(node, NOW).devices]
        assert len(set(buses)) == len(buses)
    assert FLEET.node_names[:2] == ("gpu-a01", "gpu-a02")
    assert len(set(fleet(demo_nodes=2_000).node_names)) == 2_000


COUNTERS = ("energy_joules", "throttled_seconds", "violation_seconds", "nvlink_bytes", "nvlink_link_bytes",
            "pcie_replays", "ecc_errors", "_total", "cpu_seconds", "disks", "networks")  # fmt: skip


def counters(reading: Reading) -> dict[str, float]:
    return {
        path: value
        for path, value in numbers(reading)
        if any(f".{name}" in path for name in COUNTERS) and "io_now" not in path
    }


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, len(MIX) - 1), times, st.floats(0.01, 100) | st.floats(0.01, 1e6))
def test_counters_only_grow(node: int, at: float, later: float) -> None:
    before, after = counters(FLEET.reading(node, at)), counters(FLEET.reading(node, at + later))
    assert before.keys() == after.keys()
    shrunk = {path: (before[path], after[path]) for path in before if after[path] < before[path]}
    assert shrunk == {}


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, len(MIX) - 1), times, st.floats(0.2, 12))
def test_counters_are_the_integral_of_what_is_shown(node: int, at: float, lasts: float) -> None:
    step = 0.1
    count = int(lasts / step)
    gpus = FLEET.node(node).gpus
    first, last = FLEET.reading(node, at), FLEET.reading(node, at + count * step, at)
    for gpu, before, after in zip(gpus, first.devices, last.devices, strict=True):
        shown = [gpu.read(at + (i + 0.5) * step, None)[0] for i in range(count)] if gpu.index in (0, 7) else []
        if not shown:
            continue
        joules = sum(d.power_instant_watts for d in shown) * step  # type: ignore[misc]
        # Phases last 1.5 s or more: a step is wrong only where one ends in it.
        slack = (2 + lasts / 1.5) * step
        assert after.energy_joules - before.energy_joules == pytest.approx(  # type: ignore[operator]
            joules, abs=slack * gpu.model.power_limit + 0.1
        )
        if after.utilization_mean_ratio is not ABSENT:
            busy = sum(d.utilization_ratio for d in shown) * step  # type: ignore[misc]
            gained = after.utilization_mean_ratio * count * step
            assert gained == pytest.approx(busy, abs=slack + 0.005 * lasts)  # shown in whole percents
        capped = sum(bool(own(d).throttle_mask & 0x4) for d in shown) * step  # type: ignore[operator]
        counted = after.throttled_seconds["sw_power_cap"] - before.throttled_seconds["sw_power_cap"]
        assert counted == pytest.approx(capped, abs=slack)


def test_means_of_consecutive_readings_add_up_to_the_whole() -> None:
    edges = [NOW + 3.7 * i for i in range(60)]
    parts = [FLEET.reading(0, b, a) for a, b in pairwise(edges)]
    whole = FLEET.reading(0, edges[-1], edges[0])
    for index, device in enumerate(whole.devices):
        added = sum(part.devices[index].utilization_mean_ratio * 3.7 for part in parts)  # type: ignore[operator, misc]
        assert added == pytest.approx(device.utilization_mean_ratio * 3.7 * 59, abs=1e-4)  # type: ignore[operator]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, len(MIX) - 1), times)
def test_every_number_is_physically_possible(node: int, at: float) -> None:
    reading = FLEET.reading(node, at, at - 5)
    for path, value in numbers(reading):
        assert value >= 0, path
        if "_ratio" in path and not path.endswith("cpu_ratio"):  # of one core: a process may use several
            assert value <= 1, path
    for device in reading.devices:
        check_device(device)
    processes = reading.processes
    assert processes is not ABSENT
    for device in reading.devices:
        check_processes(device, [p for p in processes if p.gpu_uuid == device.uuid], at)


def check_device(device: Device) -> None:
    for part in (device, *device.instances):
        total, used = part.memory_total_bytes, part.memory_used_bytes
        assert total == used + part.memory_free_bytes + part.memory_reserved_bytes  # type: ignore[operator]
    limit = device.power_limit_watts["max"]
    assert 0 < device.power_instant_watts <= limit * 1.05  # type: ignore[operator]
    assert 0 < device.power_watts <= limit * 1.05  # type: ignore[operator]
    assert 15 < device.temperature_celsius["gpu"] < device.temperature_threshold_celsius["shutdown"]
    assert device.temperature_celsius.get("memory", 0) < 95
    for clock, hertz in device.clock_hertz.items():
        assert 0 < hertz <= device.clock_max_hertz[clock]
    assert sum(i.memory_total_bytes for i in device.instances) <= device.memory_total_bytes  # type: ignore[misc, operator]
    if device.utilization_ratio is not ABSENT and "sm" in device.engine_active_ratio:
        active = device.engine_active_ratio
        assert active["tensor"] <= active["sm"] <= device.utilization_ratio + 0.01


def check_processes(device: Device, processes: list[Process], at: float) -> None:
    assert len({(p.pid, p.instance_uuid) for p in processes}) == len(processes)
    assert sum(p.memory_bytes for p in processes) == device.memory_used_bytes  # type: ignore[misc]
    for process in processes:
        assert 2_000 < process.pid < 4_194_304
        assert process.started_at is not ABSENT
        assert process.started_at <= at + 0.01
        assert (process.instance_uuid is ABSENT) == (not device.instances)
        assert (process.sm_ratio is ABSENT) == bool(device.instances)
    if not device.instances:
        shares = sum(p.sm_ratio for p in processes)  # type: ignore[misc]
        assert shares <= device.utilization_ratio + 0.005 * max(1, len(processes))  # type: ignore[operator]


@pytest.mark.parametrize("key", demo_models())
def test_a_model_tells_what_it_can_and_nothing_else(key: str) -> None:
    model = demo_models()[key]
    assert isinstance(model, NvidiaModel)
    device = fleet(demo_model=key, demo_gpus=2).reading(0, NOW).devices[0]
    assert device.model == model.name
    assert device.memory_total_bytes == model.memory_mib * 1024 * 1024
    assert ("memory" in device.temperature_celsius) == model.hbm
    assert bool(device.fan_speed_ratio) == bool(model.fans)
    assert bool(device.link_up) == bool(device.link_bytes) == bool(model.links)
    assert len(device.link_bytes_each) == 2 * model.links
    assert bool(device.ecc_errors) == model.ecc
    assert (device.engine_active_ratio.get("sm", ABSENT) is ABSENT) == (not model.profiling)
    assert (device.serial is ABSENT) == (model.brand == "GeForce")
    assert (own(device).mig_enabled is ABSENT) == (not model.profiles)
    assert bool(own(device).remapped_rows) == bool(model.row_remap_banks)
    assert bool(own(device).retired_pages) == (model.ecc and not model.row_remap_banks)
    assert (device.temperature_margin_celsius is ABSENT) == (not model.reports_margin)


def test_idle_is_zero_and_not_absent() -> None:
    idle = [
        device
        for hour in range(48)
        for node in (0, 3)
        for device in FLEET.reading(node, NOW + 3600 * hour, NOW + 3600 * hour - 1).devices
        if device.memory_used_bytes == 0
    ]
    assert idle
    for device in idle:
        assert device.utilization_ratio == 0.0
        assert device.utilization_mean_ratio == 0.0
        assert own(device).throttle_mask == 0x1
        assert device.clock_hertz["sm"] < 0.25 * device.clock_max_hertz["sm"]


def mig_device() -> tuple[Reading, list[Device]]:
    reading = fleet(demo_model="a100-mig").reading(0, NOW, NOW - 1)
    return reading, [d for d in reading.devices if own(d).mig_enabled == 1]


def test_mig_has_sparse_instances_and_hides_what_the_driver_hides() -> None:
    reading, split = mig_device()
    assert [d.index for d in split] == [6, 7]
    assert [i.ids[0] for i in split[0].instances] == [2, 3, 9, 10]
    assert [i.ids[0] for i in split[1].instances] == [7, 12]
    for device in split:
        assert device.utilization_ratio is ABSENT
        assert device.utilization_mean_ratio is ABSENT
        assert not device.link_bytes
        assert all(
            isinstance(i, Instance) and i.engine_active_ratio.get("sm", ABSENT) is not ABSENT
            for i in device.instances
        )
    known = {i.uuid for d in split for i in d.instances}
    placed = {p.instance_uuid for p in reading.processes if p.instance_uuid is not ABSENT}  # type: ignore[union-attr]
    assert placed
    assert placed <= known


def test_everyday_life_has_every_kind_of_owner_and_sharing() -> None:
    readings = [FLEET.reading(node, NOW + 3600 * hour) for node in range(4) for hour in range(24)]
    processes = [p for r in readings if r.processes is not ABSENT for p in r.processes]
    assert any(p.owner.job is not ABSENT and p.owner.job_account is not ABSENT for p in processes)
    assert any(p.owner.pod is not ABSENT and p.owner.namespace is not ABSENT for p in processes)
    assert any(p.owner.user is not ABSENT and p.owner.job is ABSENT for p in processes)
    assert any(p.kind == "M" for p in processes)
    by_gpu = [[p for p in r.processes if p.gpu_uuid == d.uuid] for r in readings for d in r.devices]  # type: ignore[union-attr]
    assert max(map(len, by_gpu)) >= 3
    ranks = {(p.owner.job, p.gpu_uuid) for p in processes if p.owner.job is not ABSENT}
    assert len({job for job, _ in ranks}) < len(ranks), "no job holds two GPUs"
    busy = [d.utilization_ratio for r in readings for d in r.devices if d.utilization_ratio is not ABSENT]
    assert min(busy) == 0
    assert max(busy) >= 0.99
    assert any(xid for node in range(4) for xid in FLEET.reading(node, NOW, NOW - 10 * 86_400).errors)


def test_jobs_come_and_go_and_keep_their_names_while_they_run() -> None:
    seen: dict[object, set[float]] = {}
    for minute in range(0, 1440, 10):
        for process in FLEET.reading(0, NOW + 60 * minute).processes:  # type: ignore[union-attr]
            assert process.started_at is not ABSENT
            seen.setdefault((process.pid, process.gpu_uuid), set()).add(process.started_at)
    assert len(seen) > 16
    assert all(len(starts) == 1 for starts in seen.values())


def test_the_host_follows_the_gpus() -> None:
    host = FLEET.reading(0, NOW).host
    assert host is not ABSENT
    assert host.uname["nodename"] == "gpu-a01"
    assert host.boot_time_seconds is not ABSENT
    assert NOW - 66 * 86_400 < host.boot_time_seconds < NOW - 34 * 86_400
    uptime = NOW - host.boot_time_seconds
    for cpu in range(32):
        used = sum(seconds for (name, _), seconds in host.cpu_seconds.items() if name == str(cpu))
        assert used == pytest.approx(uptime, rel=1e-3)
    for filesystem in host.filesystems:
        assert 0 <= filesystem.available_bytes <= filesystem.free_bytes <= filesystem.size_bytes
    assert host.memory["MemAvailable_bytes"] <= host.memory["MemTotal_bytes"]


@pytest.mark.parametrize(("gpus", "model"), [(0, ""), (1, ""), (1, "h100-mig"), (20, "gb200"), (3, "A100 ")])
def test_any_number_of_gpus(gpus: int, model: str) -> None:
    reading = fleet(demo_gpus=gpus, demo_model=model).reading(0, NOW, NOW - 1)
    assert len(reading.devices) == gpus
    assert reading.processes is not ABSENT
    assert len({d.pci_bus_id for d in reading.devices}) == gpus


@pytest.mark.parametrize("model", ["h300", "t4-mig", "mig", ""])
def test_an_unknown_model_is_named_with_the_known_ones(model: str) -> None:
    if not model:
        assert fleet(demo_model=model).reading(0, NOW).devices
        return
    with pytest.raises(UsageError, match=f"'{model}'.*h100.*gb200"):
        fleet(demo_model=model)


def test_a_source_averages_since_its_last_reading_and_survives_a_clock_set_back() -> None:
    now = [NOW]
    source = open_node(Settings(), 0, lambda: now[0])
    source.read(ALL)
    now[0] = NOW + 5
    reading = source.read(ALL)
    assert reading == fleet().reading(0, NOW + 5, NOW)
    now[0] = NOW - 100
    back = source.read(frozenset())
    assert all(d.utilization_mean_ratio is ABSENT for d in back.devices)
    assert all(d.utilization_ratio is not ABSENT for d in back.devices)


def test_nodes_that_are_opened_one_by_one_share_a_fleet() -> None:
    shared = fleet()
    sources = [open_node(Settings(), index, lambda: NOW + 1, fleet=shared) for index in range(4)]
    models = {source.read(ALL).devices[0].model for source in sources}
    assert len(models) == 4
    with pytest.raises(UsageError, match="demo node 4"):
        open_node(Settings(), 4, fleet=shared)
    with pytest.raises(UsageError, match="at least 1"):
        fleet(demo_nodes=0)
