"""The source's cycle with the fake nvidia-smi: which commands run how often, and the effect of each failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import SourceError, SourceMissing, UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Driver, Pid, Reading
from gpuscope.model.source import Source, Tier, load_source
from gpuscope.vendors.nvidia.nvidia_smi import SOURCE
from gpuscope.vendors.nvidia.nvidia_smi.smi_source import BUILT_IN_FIELDS, NvidiaSmi, SmiCommand
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.fake_smi import CAPTURES, FakeSmi
from tests.fakes import make_settings

T4 = CAPTURES / "linux-x86_64__tesla-t4-x2__535.183.06.txt"
A100 = CAPTURES / "linux-x86_64__a100-mig-mixed__550.90.07.txt"
RTX = CAPTURES / "linux-x86_64__geforce-rtx-3090__560.35.txt"
T4_UUIDS = ("GPU-7d1c2b5e-2f0a-4a44-9e0b-51c0ffee0001", "GPU-7d1c2b5e-2f0a-4a44-9e0b-51c0ffee0002")
EVERY_TIER = frozenset(Tier)
FAST = frozenset({Tier.FAST})


def open_source(fake: FakeSmi) -> Source:
    return SOURCE.open(make_settings(nvidia_smi_command=fake.command, nvidia_smi_timeout=60.0))


def runs_of(fake: FakeSmi, source: Source, due: frozenset[Tier]) -> tuple[Reading, list[str]]:
    before = len(fake.options())
    reading = source.read(due)
    return reading, fake.options()[before:]


# How often what is run.


def test_two_runs_a_cycle_without_mig(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4, "load")
    source = open_source(fake)
    assert fake.options() == ["--help-query-gpu", "--version"]
    _, first = runs_of(fake, source, EVERY_TIER)
    assert first == ["--query-gpu", "-q", "--query-compute-apps"]
    _, second = runs_of(fake, source, FAST)
    assert second == ["--query-gpu", "--query-compute-apps"]


def test_two_runs_a_cycle_with_mig_and_the_layout_only_when_it_changed(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, A100, "load")
    source = open_source(fake)
    assert runs_of(fake, source, EVERY_TIER)[1] == ["--query-gpu", "-q", "-L"]
    assert runs_of(fake, source, FAST)[1] == ["--query-gpu", "-q"]
    fake.apply(
        faults={"-q": {"kind": "replace", "old": "GPU Instance ID                    : 5", "new": "x : 5"}}
    )
    reading, runs = runs_of(fake, source, FAST)
    assert runs == ["--query-gpu", "-q", "-L"]
    assert [instance.ids[0] for instance in reading.devices[0].instances] == [1, 1, 13]
    assert runs_of(fake, source, FAST)[1] == ["--query-gpu", "-q"]


def test_it_is_found_by_the_name_users_type() -> None:
    spec = load_source("nvidia-smi")
    settings = make_settings(nvidia_smi_interval=7.0, nvidia_smi_timeout=10.0)
    assert spec is SOURCE
    assert spec.interval_seconds(settings) == 7.0
    assert spec.deadline_seconds(settings) > 7.0 + 10.0


def test_an_invalid_command_is_refused_before_the_start() -> None:
    SOURCE.check(Settings())
    with pytest.raises(UsageError, match="ssh 'node7 nvidia-smi"):
        SOURCE.check(make_settings(nvidia_smi_command="ssh 'node7 nvidia-smi"))


def test_an_executable_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSmi(tmp_path / "fake", RTX).install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (device,) = SOURCE.open(Settings()).read(EVERY_TIER).devices
    assert device.model == "NVIDIA GeForce RTX 3090"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceMissing, match="nvidia-smi was not found"):
        SOURCE.open(Settings())


def test_a_shell_on_the_far_side_changes_nothing(tmp_path: Path) -> None:
    """Like ssh: the arguments are joined with spaces and split again by a remote shell."""
    fake = FakeSmi(tmp_path, A100, "load")
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    settings = make_settings(nvidia_smi_command=f"{ssh} node7 {fake.command}", nvidia_smi_timeout=60.0)
    assert SOURCE.open(settings).read(EVERY_TIER) == open_source(fake).read(EVERY_TIER)


# What is read.


def test_devices_of_an_older_driver(tmp_path: Path) -> None:
    reading = open_source(FakeSmi(tmp_path, T4, "load")).read(EVERY_TIER)
    busy, idle = reading.devices
    driver = reading.drivers["nvidia"]
    assert (driver.driver_version, driver.library_versions["cuda"]) == ("535.183.06", "12.2")
    assert (busy.uuid, idle.uuid) == T4_UUIDS
    assert (own(busy).throttle_mask, own(idle).throttle_mask) == (0x24, 0x01)
    assert (busy.utilization_ratio, idle.utilization_ratio) == (0.97, 0.0)
    assert busy.power_average_watts is ABSENT
    assert busy.fan_speed_ratio == {}
    assert idle.ecc_errors["uncorrected", "aggregate"] == 3
    assert own(idle).retired_pages == {"single_bit": 0.0, "double_bit": 1.0}
    assert (own(idle).retired_pages_pending, own(idle).compute_mode, idle.pcie_link_width) == (1.0, 3.0, 8.0)
    assert (busy.architecture, idle.minor_number, idle.pcie_replays) == ("Turing", 1, 4.0)
    assert busy.temperature_threshold_celsius == {"shutdown": 96.0, "slowdown": 93.0, "gpu_max": 85.0}
    assert busy.clock_max_hertz == {"graphics": 1.59e9, "sm": 1.59e9, "memory": 5.001e9, "video": 1.47e9}
    assert reading.processes is not ABSENT
    assert [(p.pid, p.command) for p in reading.processes] == [
        (48211, "python3"),
        (48377, "serve"),
        (50001, ABSENT),
    ]


def test_instances_and_the_processes_on_them(tmp_path: Path) -> None:
    reading = open_source(FakeSmi(tmp_path, A100, "load")).read(EVERY_TIER)
    cut, whole = reading.devices
    assert cut.utilization_ratio is ABSENT
    assert [(i.ids[0], i.ids[1], i.profile) for i in cut.instances] == [
        (1, 0, "1c.3g.20gb"),
        (1, 1, "1c.3g.20gb"),
        (5, 0, "2g.10gb"),
        (13, 0, "1g.5gb"),
    ]
    assert cut.instances[2].memory_used_bytes == 3021 * 2**20
    assert whole.instances == ()
    assert reading.processes is not ABSENT
    on_instance = {process.pid: process.instance_uuid for process in reading.processes}
    assert on_instance == {
        7001: cut.instances[0].uuid,
        7002: cut.instances[1].uuid,
        7103: cut.instances[2].uuid,
        9000: ABSENT,
    }
    assert {process.pid: process.kind for process in reading.processes}[Pid(7103)] == "M+C"


def test_none_run_is_not_cannot_tell(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4, "idle")
    source = open_source(fake)
    assert source.read(FAST).processes == ()
    fake.apply(faults={"--query-compute-apps": {"kind": "exit", "code": 6, "stderr": "no"}})
    reading = source.read(FAST)
    assert reading.processes is ABSENT
    assert reading.failures == {"--query-compute-apps": 1}
    assert len(reading.devices) == 2


# What goes wrong.


@pytest.mark.parametrize(
    ("fault", "sentence", "code"),
    [
        (
            {
                "kind": "exit",
                "code": 9,
                "stdout": "NVIDIA-SMI has failed because it couldn't communicate\nMake sure",
            },
            r"--query-gpu exited with 9: NVIDIA-SMI has failed because it couldn't communicate$",
            9,
        ),
        ({"kind": "exit", "code": 255, "stderr": "Unknown Error"}, "exited with 255: Unknown Error", 255),
        (
            {"kind": "exit", "code": 0, "stdout": "No devices were found\n"},
            "lists no GPU: No devices were found",
            0,
        ),
        ({"kind": "exit", "code": 0}, "lists no GPU: it printed nothing", 0),
        ({"kind": "print", "hex": "ff00fe2c2c2c0a" * 40}, "lists no GPU", 0),
        ({"kind": "half", "share": 0.1}, "lists no GPU", 0),
    ],
)
def test_a_run_without_output_is_one_sentence(
    tmp_path: Path, fault: dict[str, object], sentence: str, code: int
) -> None:
    fake = FakeSmi(tmp_path, T4)
    source = open_source(fake)
    fake.apply(faults={"--query-gpu": fault, "-L": {"kind": "exit", "code": 9}})
    with pytest.raises(SourceError, match=sentence) as caught:
        source.read(FAST)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_a_hanging_run_is_killed(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4, faults={"--query-gpu": {"kind": "hang"}})
    source = NvidiaSmi(SmiCommand(fake.command, 0.5), BUILT_IN_FIELDS, Driver())
    with pytest.raises(SourceError, match=r"did not answer within 0\.5 s and was killed"):
        source.read(FAST)


def test_half_a_line_costs_that_gpu_only(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4)
    source = open_source(fake)
    source.read(FAST)
    fake.apply(faults={"--query-gpu": {"kind": "half", "share": 0.9}})
    reading = source.read(FAST)
    whole, lost = reading.devices
    assert (whole.uuid, whole.lost, whole.power_watts) == (T4_UUIDS[0], False, 9.61)
    assert (lost.uuid, lost.index, lost.lost, lost.power_watts) == (T4_UUIDS[1], 1, True, ABSENT)
    assert reading.failures == {"rows of --query-gpu": 1}


def test_a_gpu_off_the_bus_does_not_take_the_other_with_it(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4, "load")
    source = open_source(fake)
    source.read(FAST)
    fake.apply(lost=T4_UUIDS[0])
    reading, runs = runs_of(fake, source, FAST)
    assert runs == ["--query-gpu", "-L", "--query-gpu", "--query-compute-apps"]
    assert fake.runs()[-2][-2:] == ["-i", T4_UUIDS[1]]
    assert [(d.uuid, d.lost) for d in reading.devices] == [(T4_UUIDS[1], False), (T4_UUIDS[0], True)]
    assert reading.devices[0].power_watts == 9.61
    assert reading.failures["--query-gpu"] == 1
    fake.apply(lost="")
    assert [d.lost for d in source.read(FAST).devices] == [False, False]


def test_a_gpu_taken_out_is_not_a_lost_one(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4)
    source = open_source(fake)
    source.read(FAST)
    rows = fake.capture.read_text("utf-8").split("\n")
    smaller = tmp_path / "one.txt"
    smaller.write_text("\n".join(row for row in rows if not (T4_UUIDS[1] in row and ", " in row)), "utf-8")
    fake.apply(capture=smaller)
    reading = source.read(FAST)
    assert [device.uuid for device in reading.devices] == [T4_UUIDS[0]]
    assert reading.failures == {}


def test_noise_around_the_answer_is_no_failure(tmp_path: Path) -> None:
    noise = {"kind": "noise"}
    fake = FakeSmi(
        tmp_path,
        T4,
        "load",
        faults={"--query-gpu": noise, "--query-compute-apps": noise, "-q": noise, "--help-query-gpu": noise},
    )
    reading = open_source(fake).read(EVERY_TIER)
    assert reading.failures == {}
    assert reading.processes is not ABSENT
    assert (len(reading.devices), len(reading.processes)) == (2, 3)
    assert "clocks_throttle_reasons.active" in own(reading.devices[0]).smi_cells


def test_without_the_help_the_built_in_fields_are_queried(tmp_path: Path) -> None:
    fake = FakeSmi(
        tmp_path, T4, faults={"--help-query-gpu": {"kind": "exit", "code": 2, "stdout": "no such option"}}
    )
    source = open_source(fake)
    reading, runs = runs_of(fake, source, FAST)
    # This driver refuses the newer name of the throttle reasons, so the second run has the older one.
    assert runs == ["--query-gpu", "--query-gpu", "--query-compute-apps"]
    assert own(reading.devices[0]).throttle_mask == 0x01
    assert runs_of(fake, source, FAST)[1] == ["--query-gpu", "--query-compute-apps"]
    asked = set(fake.runs()[-2][0].partition("=")[2].split(","))
    assert {field for field in BUILT_IN_FIELDS if not field.startswith("clocks_event")} <= asked


def test_a_failed_log_leaves_its_own_values_absent(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, A100, "load")
    source = open_source(fake)
    source.read(EVERY_TIER)
    fake.apply(faults={"-q": {"kind": "exit", "code": 1, "stderr": "no"}})
    reading = source.read(FAST)
    assert reading.failures == {"-q": 1}
    assert all(device.instances == () for device in reading.devices)
    assert reading.devices[0].architecture is ABSENT
    assert reading.devices[0].power_watts == 352.41
    assert reading.processes is not ABSENT
    assert {p.pid for p in reading.processes} == {7001, 7002, 7103, 9000}
    fake.apply(faults={})
    assert len(source.read(FAST).devices[0].instances) == 4


def test_a_list_that_fails_leaves_instances_absent_and_is_tried_again(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, A100, "load", faults={"-L": {"kind": "exit", "code": 1, "stderr": "no"}})
    source = open_source(fake)
    reading = source.read(EVERY_TIER)
    assert (reading.devices[0].instances, reading.failures) == ((), {"-L": 1})
    fake.apply(faults={})
    assert len(source.read(FAST).devices[0].instances) == 4


def test_a_failed_read_differs_from_a_failed_call(tmp_path: Path) -> None:
    fake = FakeSmi(tmp_path, T4, faults={"--query-compute-apps": {"kind": "exit", "code": 3}})
    settings = make_settings(nvidia_smi_command=fake.command, nvidia_smi_timeout=60.0)
    worker = SourceWorker(SOURCE, settings, SystemClock())
    assert (worker.status().code, worker.status().failed_reads) == (ABSENT, 0)
    worker.read_once()
    status = worker.status()
    assert (status.up, status.code, status.failures, status.failed_reads) == (True, 0, 1, 0)
    fake.apply(
        faults={"--query-gpu": {"kind": "exit", "code": 9, "stdout": "no driver"}, "-L": {"kind": "exit"}}
    )
    worker.read_once()
    status = worker.status()
    assert (status.up, status.code, status.failures, status.failed_reads) == (False, 9, 2, 1)
    assert worker.fresh() is ABSENT
