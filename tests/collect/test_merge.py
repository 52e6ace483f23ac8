from __future__ import annotations

from gpuscope.agent.collect.composer import merge_readings
from gpuscope.model.readings import ABSENT, Device, Driver, Pid, Process, Reading, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_instance, own
from tests.fakes import gpu


def test_the_first_source_wins_and_the_others_fill_its_gaps() -> None:
    nvml = Reading(devices=(gpu(power_watts=300.0, temperature_celsius={"gpu": 60.0}),), processes=())
    dcgm = Reading(
        devices=(
            gpu(
                power_watts=1.0,
                engine_active_ratio={"tensor": 0.4},
                temperature_celsius={"gpu": 1.0, "memory": 70.0},
            ),
        )
    )
    (device,) = merge_readings([nvml, dcgm]).devices
    assert device.power_watts == 300.0
    assert device.engine_active_ratio.get("tensor", ABSENT) == 0.4
    assert device.temperature_celsius == {"gpu": 60.0, "memory": 70.0}
    assert device.fan_speed_ratio == {}


def test_a_zero_is_a_number_and_is_not_filled() -> None:
    (device,) = merge_readings(
        [Reading(devices=(gpu(utilization_ratio=0.0),)), Reading(devices=(gpu(utilization_ratio=0.9),))]
    ).devices
    assert device.utilization_ratio == 0.0


def test_no_process_is_not_the_same_as_not_knowing() -> None:
    assert merge_readings([Reading(), Reading(processes=())]).processes == ()
    assert merge_readings([Reading()]).processes is ABSENT


def test_devices_come_by_index_and_instances_are_merged_by_uuid() -> None:
    instance = make_instance(uuid=Uuid("MIG-1"), gpu_instance=7, compute_instance=0, memory_used_bytes=5.0)
    profiled = make_instance(
        uuid=Uuid("MIG-1"), gpu_instance=7, compute_instance=0, engine_active_ratio={"sm": 0.5}
    )
    first = Reading(
        devices=(gpu(1), gpu(0, instances=(instance,))), drivers={"nvidia": Driver(driver_version="580")}
    )
    second = Reading(
        devices=(gpu(0, instances=(profiled,)),), drivers={"nvidia": Driver(library_versions={"cuda": "13.0"})}
    )
    merged = merge_readings([first, second])
    assert [device.index for device in merged.devices] == [0, 1]
    (both,) = merged.devices[0].instances
    assert (both.memory_used_bytes, both.engine_active_ratio.get("sm", ABSENT)) == (5.0, 0.5)
    assert merged.drivers == {"nvidia": Driver(driver_version="580", library_versions={"cuda": "13.0"})}


def test_a_source_without_a_vendor_takes_nothing_of_the_vendor_s_away() -> None:
    """A rack's controller knows the power of a GPU, and not whose GPU it is."""
    rack = Reading(devices=(Device(uuid=Uuid("GPU-0"), index=0, power_watts=300.0),))
    nvml = Reading(devices=(gpu(0, recovery_action=0.0, fabric_state=3.0),))
    for readings in ([rack, nvml], [nvml, rack]):
        (device,) = merge_readings(readings).devices
        assert (device.vendor, device.power_watts) == ("nvidia", 300.0)
        assert (own(device).recovery_action, own(device).fabric_state) == (0.0, 3.0)


def test_processes_of_gpus_of_several_vendors_come_together() -> None:
    def process(pid: int, uuid: str) -> Process:
        return Process(pid=Pid(pid), gpu_uuid=Uuid(uuid))

    nvml = Reading(devices=(gpu(0),), processes=(process(1, "GPU-0"),))
    fallback = Reading(devices=(gpu(0),), processes=(process(1, "GPU-0"), process(2, "GPU-0")))
    other = Reading(devices=(Device(uuid=Uuid("GPU-amd"), index=0),), processes=(process(3, "GPU-amd"),))
    idle = Reading(devices=(gpu(0),), processes=())
    unknown = Reading(devices=(gpu(0),))
    for readings, pids in (
        ([nvml, fallback, other], [1, 3]),
        ([idle, fallback, other], [3]),
        ([unknown, other], [3]),
        ([unknown, nvml], [1]),
        ([unknown, nvml, other], [1, 3]),
        ([other, nvml], [3, 1]),
    ):
        merged = merge_readings(readings).processes
        assert merged is not ABSENT
        assert [one.pid for one in merged] == pids


def test_a_gpu_is_split_if_any_source_says_so() -> None:
    whole, split = Reading(devices=(gpu(),)), Reading(devices=(gpu(mig_enabled=1.0),))
    for readings in ([whole, split], [split, whole], [split, split]):
        assert merge_readings(readings).devices[0].is_split
    assert not merge_readings([whole, Reading(devices=(gpu(power_watts=1.0),))]).devices[0].is_split
