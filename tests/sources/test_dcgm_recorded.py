"""Recorded dmon output, from text to devices: ours in tests/captures, DCGM's own where they are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT, Device
from gpuscope.vendors.nvidia.dcgm.devices import DeviceBuilder, parse_hierarchy
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity, DmonTable, Value
from gpuscope.vendors.nvidia.dcgm_fields import dcgm_fields
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.recordings import recording

OURS = Path(__file__).parents[1] / "captures" / "dcgmi"

# In a recording the header is all there is to tell the ids by; a stream goes by the ids it asked for.
IDS = {field.short_name: field_id for field_id, field in reversed(dcgm_fields().items())}


def ours(name: str) -> str:
    return (OURS / name).read_text()


def dcgms(name: str) -> str:
    return recording(f"captures/dcgmi/{name}").read_text()


def samples(text: str, hierarchy: str = "") -> Iterator[tuple[Device, ...]]:
    """The devices after each sample of the stream."""
    lines = text.splitlines()
    names = lines[0].replace("# Entity", "#Entity").split()[1:]
    table, maker = DmonTable([IDS[name] for name in names]), DeviceBuilder()
    rows: dict[DmonEntity, dict[int, Value]] = {}
    fresh: set[DmonEntity] = set()
    for line in lines:
        row = table.feed(line)
        if row is None:
            continue
        if row.entity in fresh:
            yield maker.to_devices(rows, parse_hierarchy(hierarchy))
            fresh.clear()
        fresh.add(row.entity)
        rows[row.entity] = dict(row.values)
    assert table.rejected == 0
    yield maker.to_devices(rows, parse_hierarchy(hierarchy))


@pytest.mark.parametrize("version", ["1.x", "2.1", "3.3.9", "4.4", "4.6"])
def test_our_recordings_of_two_gpus(version: str) -> None:
    (first, second), *_ = samples(ours(f"{version}/two-gpus.dmon.txt"))
    assert (first.index, first.model) == (0, "Tesla V100-SXM2-16GB")
    assert first.uuid == "GPU-3b1c1e5a-7b7f-4c0e-9d5e-000000000001"
    assert first.clock_hertz["sm"] == 1530e6
    assert first.power_watts == 249.871
    assert first.utilization_ratio == 0
    assert first.fan_speed_ratio == {}
    assert second.utilization_ratio == pytest.approx(0.87)
    assert second.ecc_errors == {("corrected", "volatile"): 2}


def test_our_recording_of_a_gpu_that_is_lost() -> None:
    *_, (first, second) = samples(ours("4.6/lost-gpu.dmon.txt"))
    assert (first.lost, second.lost) == (False, True)
    assert second.uuid == "GPU-3b1c1e5a-7b7f-4c0e-9d5e-000000000002"
    assert second.power_watts is ABSENT


def test_our_recording_of_a_gpu_that_comes_back() -> None:
    lost = [[device.lost for device in devices] for devices in samples(ours("4.6/gpu-comes-back.dmon.txt"))]
    assert lost == [[False, False], [False, True], [False, False]], "its row stays, and so does its name"


def test_our_recording_of_an_xid_that_sticks() -> None:
    codes = [
        [own(device).dcgm_fields.get(230) for device in devices]
        for devices in samples(ours("4.6/xid.dmon.txt"))
    ]
    assert codes == [[None, None], [None, 48], [None, 48]]


def test_our_recording_of_mig() -> None:
    hierarchy = ours("4.6/mig.discovery-c.txt")
    ((first, second),) = samples(ours("4.6/mig.dmon.txt"), hierarchy)
    assert [(instance.ids[0], instance.profile) for instance in first.instances] == [
        (3, "2g.10gb"),
        (9, "1g.5gb"),
    ]
    assert first.instances[1].memory_used_bytes == 0
    assert second.instances == ()


@pytest.mark.parametrize("version", ["3.3.9", "4.6.0"])
def test_eight_busy_h100(version: str) -> None:
    last = list(samples(dcgms(f"{version}/h100-busy.dmon-all.txt")))[-1]
    assert [device.index for device in last] == list(range(8))
    assert all(device.memory_used_bytes == 40960 * 1048576 for device in last)
    assert all(not device.lost and device.power_watts is not ABSENT for device in last)


def test_a_gpu_falls_off_the_bus_and_recovers() -> None:
    history = [
        [device.lost for device in devices] for devices in samples(dcgms("4.6.0/h100-busy.x-uuid-lost.txt"))
    ]
    assert all(len(lost) == 8 for lost in history), "its row stays, and so does its name"
    assert sum(history[0]) == 0
    assert any(sum(lost) == 1 for lost in history)


def test_an_xid_sticks() -> None:
    codes = [
        [own(device).dcgm_fields.get(230) for device in devices]
        for devices in samples(dcgms("4.6.0/h100-busy.x-xid.txt"))
    ]
    assert codes[0] == [None] * 8
    assert 48 in codes[-1]


def test_three_mig_instances() -> None:
    hierarchy = dcgms("4.6.0/a100-mig3.discovery-c.txt")
    devices = list(samples(dcgms("4.6.0/a100-mig3.dmon-mig-all.txt"), hierarchy))[-1]
    found = {instance.ids[0]: instance.uuid for device in devices for instance in device.instances}
    assert sorted(found) == [1, 5, 13]
    assert len(set(found.values())) == 3
    assert all(uuid.startswith("MIG-") for uuid in found.values())
