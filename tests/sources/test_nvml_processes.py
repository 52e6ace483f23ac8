"""Processes: from the driver's lists, shares and names to readings; ended, shared and oddly named ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.readings import ABSENT, Process
from gpuscope.vendors.nvidia.nvml.process_list import MAX_NAME_CHARACTERS, short_name
from tests.fake_nvml import driver as fake
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    driver.gpus(4)
    with Rig(driver, tmp_path) as rig:
        yield rig


def processes_of(rig: Rig, seconds: float = 1.0) -> tuple[Process, ...]:
    processes = rig.tick(seconds).processes
    assert processes is not ABSENT
    return processes


def test_none_running_is_not_absent(rig: Rig) -> None:
    assert processes_of(rig) == ()


def test_a_process_with_all_its_numbers(rig: Rig) -> None:
    rig.driver.set(0, util=80, util_memory=40, util_encoder=20, util_decoder=10, util_jpeg=60, util_ofa=4)
    rig.driver.processes(0, [fake.Process(4242, memory=20 << 30, name="/opt/conda/bin/python3.12", share=0.5)])
    rig.tick(2)
    (process,) = processes_of(rig)
    assert process.pid == 4242
    assert process.gpu_uuid == rig.driver.cards[0].uuid
    assert process.instance_uuid is ABSENT
    assert process.kind == "C"
    assert process.command == "python3.12"
    assert process.driver_name == "/opt/conda/bin/python3.12"
    assert process.memory_bytes == 20 << 30
    assert process.sm_ratio == 0.4
    assert process.memory_ratio == 0.2
    assert process.encoder_ratio == 0.1
    assert process.decoder_ratio == 0.05
    assert process.jpeg_ratio == 0.3
    assert process.ofa_ratio == 0.02


def test_a_driver_without_the_newer_call_reports_no_jpeg_and_optical_flow(rig: Rig) -> None:
    rig.driver.fail("nvmlDeviceGetProcessesUtilizationInfo", error="FUNCTION_NOT_FOUND")
    rig.driver.set(0, util=80, util_encoder=20, util_jpeg=60)
    rig.driver.processes(0, [fake.Process(1, share=1.0), fake.Process(2, share=0.0)])
    rig.tick(2)
    first, second = processes_of(rig)
    assert (first.sm_ratio, first.encoder_ratio, first.jpeg_ratio) == (0.8, 0.2, ABSENT)
    assert (second.sm_ratio, second.encoder_ratio, second.jpeg_ratio) == (0.0, 0.0, ABSENT)


def test_unreported_memory_is_absent_and_zero_is_zero(rig: Rig) -> None:
    rig.driver.processes(0, [fake.Process(1, memory=None), fake.Process(2, memory=0)])
    assert [process.memory_bytes for process in processes_of(rig)] == [ABSENT, 0]


def test_an_idle_process_has_a_share_of_zero(rig: Rig) -> None:
    rig.driver.set(0, util=50)
    rig.driver.processes(0, [fake.Process(1, share=1.0), fake.Process(2, share=0.0)])
    rig.tick(2)
    assert [process.sm_ratio for process in processes_of(rig)] == [0.5, 0.0]


def test_a_share_follows_the_work(rig: Rig) -> None:
    rig.driver.processes(0, [fake.Process(1)])
    for util in (0, 90, 0, 0, 30):
        rig.driver.set(0, util=util)
        rig.tick(2)
        assert processes_of(rig)[0].sm_ratio == util / 100


def test_unreported_shares_are_absent(rig: Rig) -> None:
    rig.driver.set(0, process_utilization=None)
    rig.driver.processes(0, [fake.Process(1)])
    (process,) = processes_of(rig)
    assert process.sm_ratio is ABSENT
    assert process.memory_bytes == 512 << 20


def test_shares_that_fail_are_absent_not_zero(rig: Rig) -> None:
    rig.driver.processes(0, [fake.Process(1)])
    rig.read()
    rig.driver.fail("nvmlDeviceGetProcessesUtilizationInfo", error="UNKNOWN")
    assert processes_of(rig)[0].sm_ratio is ABSENT


def test_kinds_are_merged_as_nvidia_smi_shows_them(rig: Rig) -> None:
    rig.driver.processes(
        0,
        [
            fake.Process(1, kind="C", memory=100),
            fake.Process(1, kind="G", memory=300),
            fake.Process(2, kind="G", memory=5),
            fake.Process(3, kind="C", memory=None),
            fake.Process(3, kind="M", memory=7),
        ],
    )
    found = {process.pid: (process.kind, process.memory_bytes) for process in processes_of(rig)}
    assert found == {1: ("C+G", 300), 2: ("G", 5), 3: ("M+C", 7)}


def test_a_process_on_two_gpus_is_two_readings(rig: Rig) -> None:
    for gpu in (0, 3):
        rig.driver.processes(gpu, [fake.Process(9, memory=gpu + 1)])
    cards = rig.driver.cards
    assert [(process.gpu_uuid, process.memory_bytes) for process in processes_of(rig)] == [
        (cards[0].uuid, 1),
        (cards[3].uuid, 4),
    ]


def test_a_process_that_ends_between_two_calls_is_no_failure(rig: Rig) -> None:
    rig.driver.processes(0, [fake.Process(1, name=None), fake.Process(2)])
    reading = rig.read()
    assert reading.processes is not ABSENT
    assert [process.command for process in reading.processes] == [ABSENT, "python"]
    assert reading.failures == {}


def test_more_processes_than_the_buffer_holds(rig: Rig) -> None:
    rig.driver.set(0, util=100)
    rig.driver.processes(0, [fake.Process(pid, share=0.002) for pid in range(1, 501)])
    rig.read()
    assert sorted(process.pid for process in processes_of(rig)) == list(range(1, 501))
    rig.driver.processes(0, [])
    assert processes_of(rig) == ()


def test_churn_leaves_nothing_behind(rig: Rig) -> None:
    for start in range(1, 2000, 50):
        rig.driver.processes(0, [fake.Process(pid, name=f"p{pid}") for pid in range(start, start + 50)])
        found = rig.tick(1, FAST).processes
        assert found is not ABSENT
        assert [process.command for process in found] == [f"p{pid}" for pid in range(start, start + 50)]
    assert rig.source.session is not None
    assert len(rig.source.session.names) == 50


def test_a_reused_pid_gets_its_new_name(rig: Rig) -> None:
    rig.driver.processes(0, [fake.Process(1, name="old")])
    rig.read()
    rig.driver.processes(0, [fake.Process(1, name="new")])
    rig.tick(1)
    assert processes_of(rig)[0].command == "new"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ('ev"il\\na\nme', 'ev"il\\na\nme'),
        (b"caf\xe9", "caf�"),
        ("x" * 4096, "x" * MAX_NAME_CHARACTERS),
        ("/usr/bin/python train.py --token secret", "python"),
        ("訓練", "訓練"),
        ("./a.out", "a.out"),
        ("/", ABSENT),
    ],
)
def test_odd_names(rig: Rig, name: str | bytes, command: str) -> None:
    rig.driver.processes(0, [fake.Process(1, name=name)])
    assert processes_of(rig)[0].command == command


@given(st.text())
def test_a_short_name_is_short_and_has_no_path_and_no_arguments(full: str) -> None:
    name = short_name(full)
    if name is not ABSENT:
        assert 0 < len(name) <= MAX_NAME_CHARACTERS
        assert "/" not in name
        assert " " not in name


def test_lists_that_cannot_be_read_at_all_are_absent(rig: Rig) -> None:
    for kind in ("Compute", "Graphics", "MPSCompute"):
        rig.driver.fail(f"nvmlDeviceGet{kind}RunningProcesses", error="NO_PERMISSION")
    assert rig.read().processes is ABSENT


def test_a_gpu_without_process_lists_does_not_affect_the_others(rig: Rig) -> None:
    rig.driver.processes(0, [fake.Process(1)])
    rig.driver.processes(1, [fake.Process(2)])
    for kind in ("Compute", "Graphics", "MPSCompute"):
        rig.driver.fail(f"nvmlDeviceGet{kind}RunningProcesses", 0, "UNKNOWN")
    assert [process.pid for process in processes_of(rig)] == [2]
