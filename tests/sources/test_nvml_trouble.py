"""Failures of a call, a GPU or the driver affect nothing else; after recovery everything is read again."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT
from gpuscope.model.source import SourceSpec, Tier, load_source
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA
from gpuscope.vendors.nvidia.nvml.gpu import REPROBE_SECONDS
from gpuscope.vendors.nvidia.nvml.nvml_source import LOST_RETRY_SECONDS, NvmlSource
from tests.examples import examples
from tests.fake_nvml.driver import ERRORS, FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.fakes import present
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        yield rig


class RigClock:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def now(self) -> float:
        return self._rig.clocks.now()

    def monotonic(self) -> float:
        return self._rig.clocks.monotonic()


def worker_on(rig: Rig) -> SourceWorker:
    spec = SourceSpec(
        name="nvml", summary="test", open=lambda settings: NvmlSource(rig.kernel_list, rig.clocks)
    )
    return SourceWorker(spec, Settings(), RigClock(rig))


# A call


@pytest.mark.parametrize("error", ["UNKNOWN", "OPERATING_SYSTEM", "IN_USE", "MEMORY", "INSUFFICIENT_SIZE"])
def test_a_failing_call_is_counted_and_its_number_absent_not_old(rig: Rig, error: str) -> None:
    assert rig.device(3).power_watts == 71
    rig.driver.fail("nvmlDeviceGetPowerUsage", 3, error)
    reading = rig.tick(1, FAST)
    assert reading.devices[3].power_watts is ABSENT
    assert reading.devices[3].temperature_celsius["gpu"] == 34
    assert reading.devices[2].power_watts == 71
    assert reading.failures == {"nvmlDeviceGetPowerUsage": 1}
    rig.driver.heal()
    healed = rig.tick(1, FAST)
    assert healed.devices[3].power_watts == 71
    assert healed.failures == {}


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT"])
def test_a_refusal_is_not_a_failure_and_is_not_repeated_for_minutes(rig: Rig, error: str) -> None:
    rig.driver.fail("nvmlDeviceGetPowerUsage", 3, error)
    reading = rig.read()
    assert reading.devices[3].power_watts is ABSENT
    assert reading.devices[2].power_watts == 71
    assert reading.failures == {}
    rig.driver.heal()
    assert rig.tick(10).devices[3].power_watts is ABSENT  # not asked
    assert rig.tick(REPROBE_SECONDS).devices[3].power_watts == 71


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet",
        "nvmlGpmSampleAlloc",
        "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetNumFans",
        "nvmlDeviceGetName",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetWait",
        "nvmlEventSetCreate",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetProcessName",
    ],
)
def test_a_failing_call_does_not_affect_other_calls(rig: Rig, call: str) -> None:
    rig.driver.gpus(2)
    rig.driver.processes(0, [Process(77)])
    rig.read()
    for error in ("UNKNOWN", "NOT_SUPPORTED", "NO_DATA", "TIMEOUT"):
        rig.driver.fail(call, error=error)
        for _ in range(2):
            reading = rig.tick()
            assert [device.power_watts for device in reading.devices] == [71.0] * 2, error
        rig.driver.heal()
        rig.tick(REPROBE_SECONDS)
        again = rig.tick()
        assert again.failures == {}
        assert again.devices[0].engine_active_ratio.get("graphics", ABSENT) == 0
        assert again.devices[0].energy_joules is not ABSENT


def test_an_identity_that_could_not_be_read_is_read_later(rig: Rig) -> None:
    rig.driver.fail("nvmlDeviceGetName")
    rig.driver.fail("nvmlDeviceGetFieldValues")
    device = rig.device()
    assert device.model is ABSENT
    assert device.vbios_version is not ABSENT
    assert not device.link_up
    rig.driver.heal()
    assert rig.tick(10).devices[0].model == "NVIDIA H100 80GB HBM3"
    assert len(rig.tick(REPROBE_SECONDS).devices[0].link_up) == 18


def test_every_call_fails_at_first_and_heals(rig: Rig) -> None:
    rig.driver.fail("*", 2, "UNKNOWN")
    first = rig.read()
    assert len(first.devices) == 7
    assert first.failures
    rig.driver.heal()
    assert len(rig.tick().devices) == 8


def test_text_that_is_not_utf8_is_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.read()

    def no_text(handle: object) -> str:
        return b"\xff".decode()

    library = rig.source.gpus[0].calls.library
    monkeypatch.setitem(library.functions, "nvmlDeviceGetPowerUsage", no_text)
    reading = rig.tick(1, FAST)
    assert reading.devices[0].power_watts is ABSENT
    assert reading.failures == {"nvmlDeviceGetPowerUsage": 8}


def test_a_failed_slow_call_is_reported_until_its_next_read(rig: Rig) -> None:
    rig.driver.fail("nvmlDeviceGetComputeMode", 0)
    assert rig.read().failures == {"nvmlDeviceGetComputeMode": 1}
    rig.driver.heal()
    assert rig.tick(1, FAST).failures == {"nvmlDeviceGetComputeMode": 0}  # counted once, failing all the while
    assert rig.tick(60).failures == {}


# A GPU


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_lost_gpu_keeps_its_identity_and_the_others_go_on(rig: Rig, error: str) -> None:
    rig.driver.processes(3, [Process(33)])
    rig.driver.processes(4, [Process(44)])
    before = rig.read().devices[3]
    rig.driver.fail("*", 3, error)
    reading = rig.tick()
    lost = reading.devices[3]
    assert lost.lost
    assert (lost.uuid, lost.index, lost.model, lost.pci_bus_id) == (
        before.uuid, 3, before.model, before.pci_bus_id,
    )  # fmt: skip
    assert lost.power_watts is ABSENT
    assert lost.memory_used_bytes is ABSENT
    assert not lost.ecc_errors
    assert not any(device.lost for device in reading.devices if device.index != 3)
    assert reading.processes is not ABSENT
    assert [process.pid for process in reading.processes] == [44]
    assert reading.failures == {}


def test_a_recovered_gpu_has_all_its_numbers_at_once(rig: Rig) -> None:
    rig.read()
    rig.driver.lose(3)
    assert rig.tick(1, FAST).devices[3].lost
    rig.driver.find(3)
    device = rig.tick(1, FAST).devices[3]
    assert not device.lost
    assert device.power_watts == 71
    assert device.ecc_enabled == 1
    assert device.pcie_link_width == 16


def test_a_gpu_lost_before_the_first_reading_is_counted(rig: Rig) -> None:
    rig.driver.lose(0)
    reading = rig.read()
    assert [device.index for device in reading.devices if not device.lost] == [1, 2, 3, 4, 5, 6, 7]


def test_all_gpus_lost_are_each_reported_as_lost(rig: Rig) -> None:
    rig.read()
    for gpu in range(8):
        rig.driver.lose(gpu)
    reading = rig.tick()
    assert [device.lost for device in reading.devices] == [True] * 8
    assert reading.processes is ABSENT


# Which GPUs there are


def test_hotplug_is_seen_when_the_kernel_lists_another_gpu(rig: Rig) -> None:
    rig.driver.gpus(1)
    rig.kernel_lists("0000:0a:00.0")
    assert len(rig.read().devices) == 1
    rig.driver.hotplug("A100")
    rig.kernel_lists("0000:0a:00.0", "0000:1b:00.0")
    devices = rig.tick(10).devices
    assert [device.model for device in devices] == ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]


def test_unplugged_gpus_are_removed(rig: Rig) -> None:
    rig.driver.gpus(2)
    rig.kernel_lists("0000:0a:00.0", "0000:1b:00.0")
    uuids = [device.uuid for device in rig.read().devices]
    rig.driver.unplug(0)
    assert [device.lost for device in rig.tick(1, FAST).devices] == [True, False]
    rig.kernel_lists("0000:1b:00.0")
    devices = rig.tick(10).devices
    assert [(device.uuid, device.index, device.lost) for device in devices] == [(uuids[1], 0, False)]


def test_a_swapped_gpu_is_lost_and_then_another(rig: Rig) -> None:
    rig.driver.gpus(2)
    before = rig.read().devices
    rig.driver.swap(0, "H200")
    assert rig.tick(1, FAST).devices[0].lost
    devices = rig.tick(LOST_RETRY_SECONDS).devices
    assert [device.model for device in devices] == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    assert devices[0].uuid != before[0].uuid
    assert devices[1].uuid == before[1].uuid


def test_a_lost_gpu_that_a_new_session_does_not_list_stays_lost(rig: Rig) -> None:
    rig.driver.gpus(2)
    rig.read()
    gone = rig.driver.cards[1].uuid
    rig.driver.unplug(1)
    rig.tick(1, FAST)
    for _ in range(3):
        devices = rig.tick(LOST_RETRY_SECONDS).devices
        assert [(device.index, device.lost) for device in devices] == [(0, False), (1, True)]
        assert devices[1].uuid == gone
        assert devices[1].model == "NVIDIA H100 80GB HBM3"


def test_looking_for_a_lost_gpu_does_not_affect_the_others(rig: Rig) -> None:
    rig.driver.gpus(2)
    rig.driver.set(1, util=50)
    rig.read()
    rig.driver.lose(0)
    rig.tick(LOST_RETRY_SECONDS, FAST)
    before = rig.tick(1, FAST).devices[1]
    session = rig.source.session
    rig.driver.xid(1, 31)
    readings = [rig.tick(1, due) for due in (frozenset({Tier.FAST, Tier.MEDIUM}), FAST, FAST)]
    assert rig.source.session is not session
    for reading in readings:
        lost, other = reading.devices
        assert lost.lost
        assert other.ecc_enabled == 1
        assert other.pcie_link_width == 16
        assert other.utilization_mean_ratio == 0.5
        assert reading.failures == {}
    assert [int(event.code) for reading in readings for event in reading.errors] == [31]
    assert present(other.busy_seconds) - present(before.busy_seconds) == pytest.approx(1.5, abs=0.1)


# The driver


def test_unload_and_reload_is_survived(rig: Rig) -> None:
    worker = worker_on(rig)
    worker.read_once()
    assert worker.status().up
    rig.driver.unload()
    rig.driver.advance(1)
    worker.read_once()
    status = worker.status()
    assert not status.up
    assert "modprobe nvidia" in status.why
    assert worker.fresh() is ABSENT
    rig.driver.advance(1)
    worker.read_once()
    assert not worker.status().up
    rig.driver.reload("590.44.01")
    rig.driver.advance(1)
    worker.read_once()
    reading = worker.fresh()
    assert reading is not ABSENT
    assert len(reading.devices) == 8
    assert reading.drivers[NVIDIA].driver_version == "590.44.01"
    worker.close_reader()


def test_a_reload_between_two_readings_costs_one_reading(rig: Rig) -> None:
    worker = worker_on(rig)
    worker.read_once()
    rig.driver.reload()
    rig.driver.advance(1)
    worker.read_once()
    assert "unloaded or reloaded" in worker.status().why
    worker.read_once()
    assert worker.status().up
    worker.close_reader()


def test_a_version_mismatch_is_reported_with_the_fix_and_recovers(rig: Rig) -> None:
    rig.driver.mismatch()
    with pytest.raises(SourceError, match="reboot"):
        rig.read()
    rig.driver.reload()
    assert len(rig.read().devices) == 8
    rig.driver.mismatch()
    with pytest.raises(SourceError, match="different versions"):
        rig.tick()


def test_one_call_that_returns_driver_not_loaded_is_a_failure(rig: Rig) -> None:
    rig.driver.fail("nvmlDeviceGetPowerUsage", error="DRIVER_NOT_LOADED")
    reading = rig.read()
    assert reading.failures == {"nvmlDeviceGetPowerUsage": 8}
    assert reading.devices[0].temperature_celsius["gpu"] == 34


def test_no_library_is_one_sentence(tmp_path: Path) -> None:
    program = """
        from gpuscope.base.settings import Settings
        from gpuscope.model.source import load_source
        from gpuscope.base.errors import SourceMissing
        try:
            load_source("nvml").open(Settings())
        except SourceMissing as error:
            print(error)
        """
    done = run_python(program, {})
    if "libnvidia-ml.so.1 was not found" not in done:
        pytest.skip("this machine has an NVIDIA driver")
    assert "--gpus all" in done


def test_the_source_is_found_by_name() -> None:
    assert load_source("nvml").name == "nvml"
    assert issubclass(SourceMissing, SourceError)


def test_closing_unloads_the_library_so_that_an_updated_one_is_taken(driver: FakeDriver) -> None:
    program = """
        from pathlib import Path
        from gpuscope.model.source import Tier
        from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
        mapped = lambda: "libnvidia-ml" in Path("/proc/self/maps").read_text()
        for _ in range(2):
            source = NvmlSource()
            print(len(source.read(frozenset(Tier)).devices), mapped())
            source.close()
            print(mapped())
        """
    assert run_python(program, driver.env).split() == ["8", "True", "False"] * 2


def run_python(program: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_medium_only_reading_does_not_need_fast(rig: Rig) -> None:
    assert rig.read(frozenset({Tier.MEDIUM})).devices[0].pcie_link_width == 16


CALLS = (
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues", "nvmlDeviceGetSamples", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlGpmSampleAlloc", "nvmlDeviceGetProcessUtilization", "nvmlEventSetWait", "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents", "nvmlSystemGetProcessName", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetName",
    "*",
)  # fmt: skip


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(
        st.tuples(st.sampled_from(CALLS), st.sampled_from([None, 0, 1]), st.sampled_from(sorted(ERRORS))),
        max_size=4,
    ),
    due=st.lists(st.sets(st.sampled_from(list(Tier))), min_size=1, max_size=3),
)
def test_any_failure_raises_only_source_errors_and_recovers(
    driver: FakeDriver,
    tmp_path_factory: pytest.TempPathFactory,
    faults: list[tuple[str, int | None, str]],
    due: list[set[Tier]],
) -> None:
    driver.gpus(2)
    driver.mig(1, [Mig(gi=3)])
    driver.processes(0, [Process(5)])
    rig = Rig(driver, tmp_path_factory.mktemp("rig"))
    try:
        with driver.at_once():
            for call, gpu, error in faults:
                driver.fail(call, gpu, error)
        try:
            for tiers in due:
                rig.tick(1, frozenset(tiers))
        except SourceError:
            rig.close()  # as the worker does; otherwise the same session has to heal
        driver.heal()
        rig.tick(max(REPROBE_SECONDS, LOST_RETRY_SECONDS))
        reading = rig.tick()
        assert [device.power_watts for device in reading.devices] == [71, 71]
        assert [device.model for device in reading.devices] == ["NVIDIA H100 80GB HBM3"] * 2
        assert [len(device.link_errors) for device in reading.devices] == [66] * 2
        assert len(reading.devices[1].instances) == 1
        assert reading.failures == {}
    finally:
        driver.heal()
        rig.close()
