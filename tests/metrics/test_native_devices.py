"""Native device metrics over several cycles: cached samples never change the text."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.families.native.device_metrics import DeviceMetrics
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Counters, Device, Snapshot, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_instance
from tests.fakes import gpu

ECC: tuple[dict[tuple[str, str], float], ...] = (
    {("corrected", "volatile"): 3.0},
    {("corrected", "volatile"): 4.0},
    {},
)
readings = st.fixed_dictionaries(
    {},
    optional={
        "power_watts": st.sampled_from([0.0, 300.0, ABSENT]),
        "temperature_celsius": st.sampled_from([{"gpu": 0.0}, {"gpu": 61.0, "memory": 70.0}, {}]),
        "ecc_errors": st.sampled_from(ECC),
        "throttle_mask": st.sampled_from([0, 4, ABSENT]),
        "lost": st.booleans(),
    },
)


def snapshot(*devices: Device) -> Snapshot:
    counters = {device.uuid: Counters(busy_seconds=1.5) for device in devices if not device.lost}
    return Snapshot(node="n", taken_at=1.0, devices=devices, counters=counters)


@given(st.lists(st.lists(readings, max_size=2), max_size=6))
def test_a_used_builder_has_the_output_of_a_new_one(cycles: list[list[dict[str, object]]]) -> None:
    with_a_past = DeviceMetrics()
    for cycle in cycles:
        now = snapshot(*(gpu(index, **values) for index, values in enumerate(cycle)))
        assert encode_text(with_a_past.to_families(now)) == encode_text(DeviceMetrics().to_families(now))


def test_instances_come_and_go_and_their_numbers_with_them() -> None:
    metrics = DeviceMetrics()
    instance = make_instance(uuid=Uuid("MIG-1"), gpu_instance=7, compute_instance=0, memory_used_bytes=5.0)
    device = gpu(0, instances=(instance,))
    for now, expected in (
        (device, b'gpuscope_gpu_memory_used_bytes{gpu="0_7_0",uuid="MIG-1"} 5\n'),
        (replace(device, instances=()), None),
        (
            replace(device, instances=(replace(instance, memory_used_bytes=0.0),)),
            b'gpuscope_gpu_memory_used_bytes{gpu="0_7_0",uuid="MIG-1"} 0\n',
        ),
        (replace(device, instances=(replace(instance, memory_used_bytes=ABSENT),)), None),
    ):
        text = encode_text(metrics.to_families(snapshot(now)))
        assert (b"gpuscope_gpu_memory_used_bytes{" in text) == (expected is not None)
        assert expected is None or expected in text
