"""A driver call that does not return affects only its own number on its own GPU.

The driver's clock is stopped: a call is overdue only when the clock is moved, which happens while the source
waits and every runner that works is in a call that the fake driver blocks. This machine's speed does not
matter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from gpuscope.agent.job_runner import (
    CALL_DEADLINE_SECONDS,
    FIRST_PAUSE_SECONDS,
    MAX_ABANDONED_THREADS,
    MAX_STUCK_CALLS,
    JobRunner,
    JobRunners,
    PendingCall,
    abandoned_threads,
)
from gpuscope.base.errors import NoAnswerYet, SourceError
from gpuscope.model.readings import ABSENT, Device, Reading
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import own
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from gpuscope.vendors.nvidia.nvml.tiers import Clocks
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.fakes import present
from tests.sources.nvml_rig import ALL, FAST, Rig
from tests.waiting import wait_for

__all__ = ["driver"]

POWER = "nvmlDeviceGetPowerUsage"
OTHERS = (0, 1, 2, 4, 5, 6, 7)


class SteppingQueue(SimpleQueue[JobRunner]):
    """The wait for runners. While only hung calls are pending, waiting moves the driver's clock."""

    rig: Rig

    def get(self, block: bool = True, timeout: float | None = None) -> JobRunner:
        try:
            return super().get(block, 0.005)
        except Empty:
            if only_hung_calls_go_on(self.rig):
                self.rig.driver.advance(0.1)
            raise


class SteppingLanes(JobRunners):
    rig: Rig

    def __init__(self, clocks: Clocks) -> None:
        super().__init__(clocks)
        self.finished = SteppingQueue()
        self.finished.rig = self.rig


@pytest.fixture
def rig(
    driver: FakeDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    caplog.set_level(logging.INFO, "gpuscope.source")
    rig = Rig(driver, tmp_path)
    SteppingLanes.rig = rig
    monkeypatch.setattr("gpuscope.vendors.nvidia.nvml.nvml_source.JobRunners", SteppingLanes)
    yield rig
    driver.heal()
    wait_for(lambda: abandoned_threads() == 0)
    rig.close()


def runners(source: NvmlSource) -> list[JobRunner]:
    return [source.driver_runner, *(gpu.runner for gpu in source.gpus)]


def only_hung_calls_go_on(rig: Rig) -> bool:
    if rig.opened is None:  # it begins
        return ("nvmlInit", "*") in rig.driver.hangs
    working = [runner for runner in runners(rig.opened) if not runner.idle and runner.thread is not None]
    calls = [runner.thread.call() for runner in working if runner.thread is not None]
    if calls == [None] and ("nvmlInit", "*") in rig.driver.hangs:
        return True
    return bool(calls) and all(call is not None and is_hung(rig, call) for call in calls)


def is_hung(rig: Rig, call: PendingCall) -> bool:
    places = {card.uuid: f"GPU {index}" for index, card in enumerate(rig.driver.cards)}
    return any(
        (name == "*" or call.name.startswith(name)) and (uuid == "*" or places[uuid] == call.device_name)
        for name, uuid in rig.driver.hangs
    )


def read(rig: Rig, due: frozenset[Tier] = FAST, seconds: float = 1.0) -> Reading:
    return rig.tick(seconds, due)


def read_until_stuck(rig: Rig, calls: int = 1, due: frozenset[Tier] = FAST) -> Reading:
    for _ in range(20):
        with suppress(NoAnswerYet):
            reading = read(rig, due)
        if sum(len(runner.stuck_calls) for runner in runners(rig.source)) == calls and all(
            runner.idle or runner.blocked for runner in runners(rig.source)
        ):
            return reading
    raise AssertionError([str(call) for runner in runners(rig.source) for call in runner.calls()])


def heal(rig: Rig) -> None:
    rig.driver.heal()
    wait_for(lambda: not any(runner.has_stuck_calls for runner in runners(rig.source)))


def numbers(device: Device) -> set[str]:
    """The names of the readings that are not absent."""
    return {
        name
        for name in Device.__dataclass_fields__
        if getattr(device, name) is not ABSENT and getattr(device, name) != {}
    }


def test_a_stuck_call_costs_its_number_on_its_gpu_only(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    before = rig.read(ALL).devices
    rig.tick()
    rig.driver.hang(POWER, 3)
    reading = read_until_stuck(rig)
    now = read(rig)
    for index in range(8):
        missing = numbers(before[index]) - numbers(now.devices[index])
        assert missing == ({"power_watts"} if index == 3 else set())
    assert present(now.devices[3].energy_joules) > present(reading.devices[3].energy_joules), (
        "its other numbers are new"
    )
    assert now.failures == {}
    said = [record.getMessage() for record in caplog.records if "returned" in record.getMessage()]
    (line,) = said
    assert line.startswith(f"source nvml: GPU 3: {POWER} has not returned for ")
    assert line.endswith(" s; its number is absent, other numbers are still read")


def test_a_call_is_named_without_the_version_of_its_struct() -> None:
    memory = PendingCall("", "GPU 3", "nvmlDeviceGetMemoryInfo", (0x2000028,), 0.0)
    assert str(memory) == "GPU 3: nvmlDeviceGetMemoryInfo"
    assert (
        str(PendingCall("", "", "nvmlDeviceGetPcieThroughput", (1,), 0.0)) == "nvmlDeviceGetPcieThroughput(1)"
    )


def test_after_the_return_the_number_is_read_and_the_return_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.read()
    rig.driver.hang(POWER, 3)
    read_until_stuck(rig)
    read(rig, seconds=57)
    heal(rig)
    reading = rig.tick(1, FAST)
    assert reading.devices[3].power_watts == 71
    assert reading.devices[3].ecc_enabled == 1
    (line,) = [record.getMessage() for record in caplog.records if "returned after" in record.getMessage()]
    assert line.startswith(f"source nvml: GPU 3: {POWER} returned after 6"), line
    assert abandoned_threads() == 0


def test_ten_minutes_with_one_stuck_call_keep_seven_eighths_of_all_samples_fresh(rig: Rig) -> None:
    rig.read()
    rig.driver.hang(POWER, 3)
    fresh = wanted = 0
    last = rig.tick(0, frozenset())
    last = read(rig)
    for second in range(0, 600, 3):
        reading = read(rig, ALL if second % 30 == 0 else FAST, seconds=3)
        for device, earlier in zip(reading.devices, last.devices, strict=True):
            wanted += 2
            is_new = device.energy_joules is not ABSENT and device.energy_joules > present(
                earlier.energy_joules
            )
            fresh += is_new + (is_new and device.power_watts is not ABSENT)
        last = reading
    assert fresh / wanted >= 7 / 8
    assert fresh / wanted > 15 / 16 - 0.01, "all but one of GPU 3's two numbers"
    assert abandoned_threads() == 1


def test_two_stuck_calls_on_one_gpu(rig: Rig) -> None:
    rig.read()
    rig.driver.hang(POWER, 3)
    rig.driver.hang("nvmlDeviceGetTemperatureV", 3)
    read_until_stuck(rig, 2)
    reading = read(rig)
    device = reading.devices[3]
    assert device.power_watts is ABSENT
    assert "gpu" not in device.temperature_celsius, "the older call is no stand-in for one that hangs"
    assert present(device.memory_used_bytes) >= 0
    assert [reading.devices[index].power_watts for index in OTHERS] == [71] * 7
    heal(rig)
    assert rig.tick(1, FAST).devices[3].temperature_celsius["gpu"] == 34


def test_a_newer_call_that_hangs_is_not_replaced_by_an_older_one_of_another_meaning(rig: Rig) -> None:
    rig.read()
    rig.driver.hang("nvmlDeviceGetMemoryInfo", 3)
    read_until_stuck(rig)
    assert read(rig).devices[3].memory_used_bytes is ABSENT
    assert abandoned_threads() == 1


def test_a_gpu_that_answers_nothing_keeps_its_identity_and_a_bounded_number_of_threads(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    before = rig.read().devices[3]
    rig.driver.hang("*", 3)
    for _ in range(12):
        reading = read(rig)
        assert [reading.devices[index].power_watts for index in OTHERS] == [71] * 7
    device = reading.devices[3]
    assert (device.uuid, device.model, device.serial) == (before.uuid, before.model, before.serial)
    assert device.lost, "it does not answer any more"
    assert device.power_watts is ABSENT
    assert not device.temperature_celsius
    assert abandoned_threads() == MAX_STUCK_CALLS
    assert sum("no call is made until one returns" in record.getMessage() for record in caplog.records) == 1
    read(rig, ALL)
    heal(rig)
    rig.tick(1, FAST)
    assert rig.tick(1, FAST).devices[3].power_watts == 71


def about_calls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "returned" in record.getMessage()]


def test_a_driver_that_blocks_every_call_logs_one_call(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The worker logs that there is no answer and how many calls have not returned."""
    rig.read()
    rig.driver.hang("*")
    for _ in range(20):
        with pytest.raises(NoAnswerYet):
            read(rig)
    assert abandoned_threads() > 8
    stuck, *more = about_calls(caplog)
    assert "has not returned for" in stuck
    assert len(more) <= 1, "the driver's own call, should the GPUs have answered before"
    heal(rig)
    for _ in range(3):
        rig.tick(1, FAST)
    returned = about_calls(caplog)[1 + len(more) :]
    assert [("returned after" in line) for line in returned] == [True] * (1 + len(more))


def test_calls_still_stuck_after_recovery_are_logged_then(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.read()
    for index in range(8):
        rig.driver.hang("*", index)
    for _ in range(20):
        with pytest.raises(NoAnswerYet):
            read(rig)
    assert len(about_calls(caplog)) == 1
    rig.driver.heal()
    rig.driver.hang("*", 3)
    rig.driver.hang("*", 5)
    for _ in range(6):
        with suppress(NoAnswerYet):
            read(rig)
    told = "\n".join(about_calls(caplog))
    for index in (3, 5):
        assert f"GPU {index}: nvml" in told


def test_a_driver_that_blocks_every_call_has_no_reading_and_few_threads(rig: Rig) -> None:
    others = set(threading.enumerate())
    rig.read()
    rig.driver.hang("*")
    for _ in range(20):
        with pytest.raises(NoAnswerYet, match=r"GPU 0: nvmlDevice.* and .* more calls have not returned"):
            read(rig)
    assert abandoned_threads() <= MAX_ABANDONED_THREADS + 9
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("nvml ")]
    assert len(set(ours) - others) <= MAX_ABANDONED_THREADS + 9
    heal(rig)
    rig.tick(1, FAST)
    assert [device.power_watts for device in rig.tick().devices] == [71] * 8


def test_closing_does_not_wait_for_a_stuck_call_and_a_new_session_works(rig: Rig) -> None:
    rig.read()
    rig.driver.hang("*")
    with pytest.raises(NoAnswerYet):
        read(rig)
    rig.close()
    assert abandoned_threads() > 0
    rig.driver.heal()
    wait_for(lambda: abandoned_threads() == 0)
    assert [device.power_watts for device in rig.read().devices] == [71] * 8


def test_a_process_list_that_hangs(rig: Rig) -> None:
    rig.driver.processes(3, [Process(33)])
    rig.driver.processes(4, [Process(44)])
    rig.read()
    rig.driver.hang("nvmlDeviceGetComputeRunningProcesses", 3)
    read_until_stuck(rig)
    reading = read(rig)
    assert [device.power_watts for device in reading.devices] == [71] * 8
    assert reading.processes is not ABSENT
    assert [process.pid for process in reading.processes] == [44]
    assert [device.index for device in reading.devices if not device.processes_known] == [3], "not 0 processes"
    heal(rig)
    again = rig.tick(1, FAST).processes
    assert again is not ABSENT
    assert [process.pid for process in again] == [33, 44]


def test_shares_of_a_stuck_call_are_absent_not_zero(rig: Rig) -> None:
    rig.driver.processes(3, [Process(33, share=0.5)])
    rig.read()
    rig.driver.hang("nvmlDeviceGetProcessesUtilizationInfo", 3)
    read_until_stuck(rig)
    processes = read(rig).processes
    assert processes is not ABSENT
    assert [(process.pid, process.sm_ratio) for process in processes] == [(33, ABSENT)]


def test_a_process_name_that_hangs(rig: Rig) -> None:
    rig.driver.processes(3, [Process(33, name="one")])
    rig.read()
    rig.driver.hang("nvmlSystemGetProcessName")
    rig.driver.processes(3, [Process(33, name="one"), Process(34, name="two")])
    read_until_stuck(rig)
    reading = read(rig)
    assert reading.processes is not ABSENT
    assert [(process.pid, process.command) for process in reading.processes] == [(33, "one"), (34, ABSENT)]
    assert [device.power_watts for device in reading.devices] == [71] * 8


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_hanging_list_of_gpus_leaves_the_known_ones_and_their_xids(rig: Rig, call: str) -> None:
    rig.read()
    rig.driver.hang(call)
    with_list = frozenset({Tier.FAST, Tier.MEDIUM})
    stuck: set[str] = set()
    for _ in range(8):
        reading = read(rig, with_list)
        assert [device.power_watts for device in reading.devices] == [71] * 8
        stuck |= {each.name for each in rig.source.driver_runner.calls()}
    assert stuck == {call}
    assert abandoned_threads() <= MAX_STUCK_CALLS
    if call == "nvmlDeviceGetCount":
        rig.driver.xid(5, 79)
        assert [int(event.code) for event in read(rig).errors] == [79]
    heal(rig)
    assert len(rig.tick(10).devices) == 8


def test_events_that_hang_cost_only_events(rig: Rig) -> None:
    rig.read()
    rig.driver.hang("nvmlEventSetWait")
    read_until_stuck(rig)
    assert [device.power_watts for device in read(rig).devices] == [71] * 8
    rig.driver.xid(5, 79)
    heal(rig)
    assert [int(event.code) for event in rig.tick(1, FAST).errors] == [79]


def test_a_mig_mode_that_hangs_keeps_the_instances(rig: Rig) -> None:
    rig.driver.mig(1, [Mig(gi=7), Mig(gi=8)])
    rig.read()
    rig.driver.hang("nvmlDeviceGetMigMode", 1)
    read_until_stuck(rig)
    device = read(rig).devices[1]
    assert own(device).mig_enabled is ABSENT
    assert len(device.instances) == 2
    assert device.instances[0].memory_total_bytes is not ABSENT


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlDeviceGetFieldValues"])
def test_calls_with_buffers_of_ours(rig: Rig, call: str) -> None:
    rig.read()
    rig.tick()
    of_one_gpu = call != "nvmlGpmMetricsGet"  # which is not told the GPU
    rig.driver.hang(call, 3 if of_one_gpu else None)
    read_until_stuck(rig, 1 if of_one_gpu else 8)
    reading = read(rig)
    device = reading.devices[3]
    assert (
        device.energy_joules if "Field" in call else device.engine_active_ratio.get("graphics", ABSENT)
    ) is ABSENT
    assert device.power_watts == 71
    heal(rig)
    for _ in range(3):
        again = rig.tick(1, FAST).devices[3]
    assert again.energy_joules is not ABSENT
    assert again.engine_active_ratio.get("graphics", ABSENT) is not ABSENT


def test_a_gpu_that_is_lost_while_a_call_hangs_is_lost(rig: Rig) -> None:
    rig.read()
    rig.driver.hang(POWER, 3)
    read_until_stuck(rig)
    rig.driver.lose(3)
    lost = read(rig).devices[3]
    assert lost.lost
    assert lost.model is not ABSENT


def test_a_new_session_is_put_off_while_a_call_hangs(rig: Rig) -> None:
    rig.driver.gpus(2)
    rig.kernel_lists("0000:0a:00.0")
    rig.read()
    rig.driver.hang(POWER, 1)
    read_until_stuck(rig)
    session = rig.source.session
    rig.kernel_lists("0000:0a:00.0", "0000:1b:00.0")
    read(rig, ALL)
    assert rig.source.session is session
    heal(rig)
    rig.tick(10)
    assert rig.source.session is not session


def test_a_call_that_hangs_repeatedly_is_made_less_often(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.read()
    for _ in range(2):
        rig.driver.hang(POWER, 3)
        read_until_stuck(rig)
        heal(rig)
    assert rig.tick(FIRST_PAUSE_SECONDS / 2, FAST).devices[3].power_watts is ABSENT
    assert f"it is called again in {FIRST_PAUSE_SECONDS:.0f} s" in caplog.text
    assert rig.tick(FIRST_PAUSE_SECONDS, FAST).devices[3].power_watts == 71


def test_a_driver_that_does_not_start_is_waited_for_once(rig: Rig) -> None:
    rig.driver.hang("nvmlInit")
    rig.driver.count_calls()
    rig.driver.attach()
    for _ in range(5):
        with pytest.raises(NoAnswerYet, match="nvmlInit has not returned"):
            read(rig)
    assert rig.driver.calls() == {"nvmlInit": 1}
    rig.driver.heal()
    wait_for(lambda: rig.source.driver_runner.idle)
    assert len(rig.read().devices) == 8


def test_a_bug_on_one_gpu_does_not_affect_other_gpus(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.read()
    monkeypatch.setattr(rig.source.gpus[3].samples, "read", lambda: 1 / 0)
    reading = rig.tick(1, FAST)
    assert [reading.devices[index].power_watts for index in OTHERS] == [71] * 7
    assert reading.devices[3].power_watts is ABSENT
    assert reading.failures == {"reading GPU 3 (ZeroDivisionError: division by zero)": 1}


def test_a_slow_call_within_its_deadline_is_no_episode(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.read()
    rig.driver.hang(POWER, 3)
    first = read(rig)  # gives up waiting after most of a cycle, long before the call's deadline
    assert CALL_DEADLINE_SECONDS > 1
    assert first.devices[3].power_watts == 71, "its last numbers, which are young"
    rig.driver.heal()
    wait_for(lambda: all(runner.idle for runner in runners(rig.source)))
    assert rig.tick(0.1, FAST).devices[3].power_watts == 71
    assert "returned" not in caplog.text


def test_the_first_reading_waits_for_every_gpu_that_may_still_answer(rig: Rig) -> None:
    rig.driver.hang("nvmlDeviceGetName", 3)
    readings: list[Reading] = []
    for _ in range(6):
        with suppress(NoAnswerYet):
            readings.append(read(rig))
    assert readings, "the call is overdue, and the reading goes on without it"
    for reading in readings:
        assert [device.power_watts for device in reading.devices] == [71] * 8
        assert reading.devices[3].model is ABSENT
    heal(rig)
    assert rig.tick(1, FAST).devices[3].model == "NVIDIA H100 80GB HBM3"


def test_a_list_of_gpus_that_hangs_from_the_start_is_no_machine_without_gpus(rig: Rig) -> None:
    rig.driver.hang("nvmlDeviceGetCount")
    with pytest.raises(NoAnswerYet, match="nvmlDeviceGetCount has not returned"):
        read(rig)
    rig.driver.heal()
    wait_for(lambda: rig.source.driver_runner.idle)
    assert len(rig.tick().devices) == 8


def test_no_session_is_begun_while_too_many_calls_have_not_returned(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpuscope.vendors.nvidia.nvml.nvml_source.abandoned_threads", lambda: MAX_ABANDONED_THREADS
    )
    with pytest.raises(SourceError, match="32 driver calls of earlier sessions have not returned"):
        rig.read()
