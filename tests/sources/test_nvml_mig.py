"""MIG instances: the driver's ids, memory, processes and profiling; reconfiguration between readings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]

GIB = 1 << 30


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        yield rig


def test_instances_with_the_drivers_ids(rig: Rig) -> None:
    rig.driver.gpus(2, model="A100")
    uuids = rig.driver.mig(
        0, [Mig(gi=7, profile="1g.10gb", memory_used=3 * GIB), Mig(gi=2, ci=1, profile="1c.3g.40gb")]
    )
    whole, other = rig.read().devices
    assert own(whole).mig_enabled == 1
    assert [(each.uuid, each.ids[0], each.ids[1], each.profile) for each in whole.instances] == [
        (uuids[0], 7, 0, "1g.10gb"),
        (uuids[1], 2, 1, "1c.3g.40gb"),
    ]
    assert whole.instances[0].memory_used_bytes == 3 * GIB
    assert whole.instances[1].memory_used_bytes == 0
    assert whole.utilization_ratio is ABSENT  # the driver gives none for a GPU in slices
    assert whole.utilization_mean_ratio is ABSENT
    assert whole.power_watts == 62
    assert other.instances == ()
    assert own(other).mig_enabled == 0
    assert other.utilization_ratio == 0


def test_processes_belong_to_their_instance(rig: Rig) -> None:
    rig.driver.gpus(1, model="A100")
    uuids = rig.driver.mig(0, [Mig(gi=1), Mig(gi=2)])
    rig.driver.processes(
        0, [Process(10, gi=1, ci=0, memory=GIB), Process(20, gi=2, ci=0), Process(20, gi=1, ci=0)]
    )
    processes = rig.read().processes
    assert processes is not ABSENT
    assert [(each.pid, each.instance_uuid) for each in processes] == [
        (10, uuids[0]),
        (20, uuids[0]),
        (20, uuids[1]),
    ]
    assert {each.gpu_uuid for each in processes} == {rig.driver.cards[0].uuid}
    assert processes[0].memory_bytes == GIB
    assert processes[0].sm_ratio is ABSENT


def test_turning_mig_on_and_off_while_reading(rig: Rig) -> None:
    rig.driver.gpus(1, model="A100")
    assert rig.device().instances == ()
    rig.driver.mig(0, [Mig(gi=1)])
    on = rig.tick(1, FAST).devices[0]
    assert len(on.instances) == 1
    assert on.utilization_ratio is ABSENT
    rig.driver.mig(0, [])
    off = rig.tick(1, FAST).devices[0]
    assert off.instances == ()
    off = rig.tick(1, FAST).devices[0]
    assert off.utilization_ratio == 0  # what MIG made the card refuse is asked again


def test_a_destroyed_instance_is_gone_at_once_and_a_new_one_within_the_medium_tier(rig: Rig) -> None:
    rig.driver.gpus(1, model="A100")
    rig.driver.mig(0, [Mig(gi=1), Mig(gi=2)])
    assert len(rig.device().instances) == 2
    rig.driver.mig(0, [Mig(gi=2)])
    reading = rig.tick(1, FAST)
    assert [each.ids[0] for each in reading.devices[0].instances] == [2]
    assert not reading.devices[0].lost
    assert reading.failures == {}
    rig.driver.mig(0, [Mig(gi=2), Mig(gi=5, profile="3g.40gb")])
    new = rig.tick(10).devices[0].instances
    assert [(each.ids[0], each.profile) for each in new] == [(2, "1g.10gb"), (5, "3g.40gb")]
    assert new[1].memory_total_bytes is not ABSENT


def test_another_layout_with_the_same_ids(rig: Rig) -> None:
    rig.driver.gpus(1, model="A100")
    before = rig.driver.mig(0, [Mig(gi=1, profile="1g.10gb")])
    rig.read()
    after = rig.driver.mig(0, [Mig(gi=1, profile="2g.20gb")])
    assert before != after
    (instance,) = rig.tick(1, FAST).devices[0].instances
    assert (instance.uuid, instance.profile) == (after[0], "2g.20gb")


def test_instances_are_read_again_after_the_gpu_was_lost(rig: Rig) -> None:
    rig.driver.gpus(1, model="A100")
    rig.driver.mig(0, [Mig(gi=1)])
    rig.read()
    rig.driver.lose(0)
    lost = rig.tick(1, FAST).devices[0]
    assert lost.lost
    assert lost.instances == ()
    rig.driver.find(0)
    assert len(rig.tick(1, FAST).devices[0].instances) == 1


def test_profiling_per_instance(rig: Rig) -> None:
    rig.driver.mig(0, [Mig(gi=1, busy=25), Mig(gi=2, busy=0), Mig(gi=2, ci=1, profile="1c.2g.20gb")])
    rig.read()
    instances = rig.tick().devices[0].instances
    assert [each.engine_active_ratio.get("graphics", ABSENT) for each in instances[:2]] == [0.25, 0.0]
    assert instances[2].engine_active_ratio.get("graphics", ABSENT) == instances[1].engine_active_ratio.get(
        "graphics", ABSENT
    )


def test_profiling_ends_with_its_instance(rig: Rig) -> None:
    rig.driver.gpus(1)
    for round_number in range(5):
        rig.driver.mig(0, [Mig(gi=1 + round_number, busy=50)])
        rig.tick()
        (instance,) = rig.tick().devices[0].instances
        assert instance.engine_active_ratio.get("graphics", ABSENT) == 0.5
        assert len(rig.source.gpus[0].profilers) == 2


def test_a_failing_instance_leaves_the_others(rig: Rig) -> None:
    rig.driver.gpus(1, model="A100")
    rig.driver.mig(0, [Mig(gi=1), Mig(gi=2)])
    rig.read()
    rig.driver.fail("nvmlDeviceGetMigDeviceHandleByIndex", error="UNKNOWN")
    reading = rig.tick(10)
    assert reading.devices[0].power_watts == 62
    rig.driver.heal()
    assert len(rig.tick(10).devices[0].instances) == 2
