"""The DCGM source with a fake `dcgmi`: readings, and behaviour when DCGM fails."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.collect.composer import Identities
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import SourceError, SourceMissing, UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Device, Reading
from gpuscope.model.readings.device import identity_names
from gpuscope.model.source import Tier, load_source
from gpuscope.vendors.nvidia import dcgm as dcgm_module
from gpuscope.vendors.nvidia.dcgm import DcgmSource
from gpuscope.vendors.nvidia.dcgm import stream as stream_module
from gpuscope.vendors.nvidia.dcgm.devices import (
    DEFAULT_IDS,
    MAX_IDS,
    MigSlot,
    id_lists,
    parse_field_list,
    parse_hierarchy,
    usable_ids,
    wanted_ids,
)
from gpuscope.vendors.nvidia.dcgm.plan import DcgmSettings
from gpuscope.vendors.nvidia.nvidia_values import make_device, own
from tests.fakes import make_settings
from tests.recordings import recording
from tests.waiting import wait_for

FAKE = Path(__file__).parents[1] / "fake_dcgmi" / "dcgmi.py"
FAST = frozenset({Tier.FAST})


def h100(index: int, **values: Any) -> dict[str, Any]:
    cells = {
        "1": "550.163.01",
        "5": 12080,
        "50": "NVIDIA H100 80GB HBM3",
        "52": index,
        "54": f"GPU-0000000{index}-aaaa-bbbb-cccc-000000000000",
        "57": f"00000000:{0x1A + index:02X}:00.0",
        "100": 1755,
        "150": 68 + index,
        "155": 417.98,
        "156": 5_000_000,
        "203": 98,
        "252": 40960,
        "310": 0,
        "1004": 0.412,
    }
    return {"id": index, "values": cells | values}


class Machine:
    """The fake dcgmi's state file and the settings to use it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"
        self.state: dict[str, Any] = {"layout": "4.6", "known": sorted(DEFAULT_IDS), "gpus": [h100(0), h100(1)]}
        self.settings = make_settings(interval=0.1, dcgmi_command=f"{sys.executable} {FAKE}")
        self.save()

    @property
    def path(self) -> str:
        return str(self._path)

    def save(self, **changes: Any) -> None:
        self.state |= changes
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.replace(self._path)

    def commands(self) -> list[str]:
        return Path(self.path + ".log").read_text().splitlines()

    def last_pid(self) -> int:
        """The dcgmi that was started last."""
        return int(Path(self.path + ".pid").read_text())

    def samples(self) -> int:
        """How many samples all of them have printed."""
        file = Path(self.path + ".samples")  # made with the first one
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("FAKE_DCGMI", machine.path)
    return machine


class ShiftedClock:
    """The machine's clock, ahead by what a test lets pass at once."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    clock = ShiftedClock()
    monkeypatch.setattr(dcgm_module, "time", clock)
    monkeypatch.setattr(stream_module, "time", clock)
    return clock


@pytest.fixture
def open_source() -> Iterator[Callable[[Machine], DcgmSource]]:
    opened: list[DcgmSource] = []

    def open_one(machine: Machine) -> DcgmSource:
        opened.append(DcgmSource(machine.settings))
        return opened[-1]

    yield open_one
    for source in opened:
        source.close()


def read_until(source: DcgmSource, done: Callable[[Reading], bool], due: frozenset[Tier] = FAST) -> Reading:
    reading = Reading()

    def look() -> bool:
        nonlocal reading
        reading = source.read(due)
        return done(reading)

    wait_for(look, "the reading", lambda: reading)
    return reading


@pytest.mark.parametrize("layout", ["1.x", "2.1", "3.3.9", "4.4", "4.6"])
def test_devices_in_base_units_and_word_for_word(
    machine: Machine, open_source: Callable[[Machine], DcgmSource], layout: str
) -> None:
    machine.save(layout=layout)
    reading = open_source(machine).read(FAST)
    first, second = reading.devices
    assert (first.uuid, first.index, first.model) == (
        "GPU-00000000-aaaa-bbbb-cccc-000000000000",
        0,
        "NVIDIA H100 80GB HBM3",
    )
    assert first.clock_hertz == {"sm": 1755e6}
    assert first.temperature_celsius == {"gpu": 68}
    assert first.utilization_ratio == pytest.approx(0.98)
    assert first.memory_used_bytes == 40960 * 1048576
    assert first.energy_joules == pytest.approx(5000)
    assert first.ecc_errors == {("corrected", "volatile"): 0}
    assert first.engine_active_ratio.get("tensor", ABSENT) == 0.412
    assert first.memory_free_bytes is ABSENT
    assert not first.lost
    assert second.temperature_celsius == {"gpu": 69}
    assert own(first).dcgm_fields[100] == 1755
    assert own(first).dcgm_fields[155] == 417.98
    assert 251 not in own(first).dcgm_fields
    (driver,) = reading.drivers.values()
    assert (driver.driver_version, driver.library_versions["cuda"]) == ("550.163.01", "12.8")
    assert reading.processes is ABSENT


def test_it_registers_itself() -> None:
    assert load_source("dcgm").name == "dcgm"


def test_numbers_follow_the_stream(machine: Machine, open_source: Callable[[Machine], DcgmSource]) -> None:
    source = open_source(machine)
    machine.save(gpus=[h100(0, **{"203": 0})])
    reading = read_until(source, lambda reading: reading.devices[0].utilization_ratio == 0)
    assert own(reading.devices[0]).dcgm_fields[203] == 0


def test_ids_unknown_to_this_dcgm_are_not_requested(
    machine: Machine, open_source: Callable[[Machine], DcgmSource]
) -> None:
    machine.save(known=[54, 100, 150])
    device = open_source(machine).read(FAST).devices[0]
    assert own(device).dcgm_fields.keys() == {0, 54, 100, 150}
    assert machine.commands()[-1].endswith("-e 54,100,150")


def test_more_ids_than_one_stream_takes(
    machine: Machine, open_source: Callable[[Machine], DcgmSource], tmp_path: Path
) -> None:
    extra = [i for i in range(400, 490) if i not in DEFAULT_IDS]
    machine.settings = make_settings(
        interval=0.1,
        dcgmi_command=machine.settings.view(DcgmSettings).dcgmi_command,
        fields=tuple(f"+{i}" for i in extra),
    )
    machine.save(known=sorted({*DEFAULT_IDS, *extra}), gpus=[h100(0, **{"403": 3, "488": 8})])
    device = open_source(machine).read(FAST).devices[0]
    assert (own(device).dcgm_fields[403], own(device).dcgm_fields[488], own(device).dcgm_fields[100]) == (
        3,
        8,
        1755,
    )


@pytest.mark.parametrize(
    ("refused", "left"),
    [([1006, 1007, 1008, 1011, 1012, 1016], True), (list(range(1000, 1100)), False)],
)
def test_refused_profiling_costs_profiling_only(
    machine: Machine,
    open_source: Callable[[Machine], DcgmSource],
    caplog: pytest.LogCaptureFixture,
    refused: list[int],
    left: bool,
) -> None:
    machine.save(refused=refused)
    device = open_source(machine).read(FAST).devices[0]
    assert device.utilization_ratio == pytest.approx(0.98)
    assert (device.engine_active_ratio.get("tensor", ABSENT) is not ABSENT) == left
    assert "profiling refused" in caplog.text


def test_mig_instances_have_their_own_uuid_and_the_drivers_ids(
    machine: Machine, open_source: Callable[[Machine], DcgmSource]
) -> None:
    machine.save(
        gpus=[
            h100(0, **{"203": None})
            | {
                "instances": [
                    mig_row(2, 1, "MIG-aaaa-1", "3g.20gb", 9843),
                    mig_row(1, 5, "<<<NULL>>>", "1g.5gb", 100),
                ]
            },
            h100(1),
        ],
    )
    first, second = open_source(machine).read(FAST).devices
    assert second.instances == ()
    big, small = first.instances
    assert (big.uuid, big.ids[0], big.ids[1], big.profile) == ("MIG-aaaa-1", 1, 0, "3g.20gb")
    assert big.memory_used_bytes == 9843 * 1048576
    assert own(big).dcgm_fields[150] == 33
    assert own(big).dcgm_fields[0] == 2, "the number DCGM gives it"
    assert small.uuid == "MIG-GPU-00000000-aaaa-bbbb-cccc-000000000000/5/0"
    assert first.utilization_ratio is ABSENT
    assert not first.lost


def mig_row(entity: int, gpu_instance: int, uuid: str, profile: str, used: int) -> dict[str, Any]:
    values = {"54": uuid, "50": profile, "252": used, "150": 33, "310": 0}
    return {"entity": entity, "gpu_instance": gpu_instance, "values": values}


def test_mig_reconfigured_while_running(machine: Machine, open_source: Callable[[Machine], DcgmSource]) -> None:
    source = open_source(machine)
    assert source.read(frozenset(Tier)).devices[0].instances == ()
    machine.save(gpus=[h100(0) | {"instances": [mig_row(0, 7, "MIG-new", "1g.10gb", 5)]}, h100(1)])
    reading = read_until(source, lambda reading: bool(reading.devices[0].instances), frozenset(Tier))
    assert reading.devices[0].instances[0].uuid == "MIG-new"


def test_a_lost_gpu_keeps_its_name_and_costs_no_other(
    machine: Machine, open_source: Callable[[Machine], DcgmSource]
) -> None:
    source = open_source(machine)
    blank = dict.fromkeys(h100(0)["values"]) | {"54": "<<<NULL>>>", "50": "<<<NULL>>>"}
    machine.save(gpus=[{"id": 0, "values": blank}, h100(1)])
    reading = read_until(source, lambda reading: reading.devices[0].lost)
    lost, alive = reading.devices
    assert lost == make_device(uuid=lost.uuid, index=0, lost=True, dcgm_fields={0: 0})
    assert lost.uuid.startswith("GPU-00000000")
    assert alive.temperature_celsius == {"gpu": 69}


def test_a_lost_gpu_keeps_its_identity_in_the_snapshot(
    machine: Machine, open_source: Callable[[Machine], DcgmSource]
) -> None:
    source, identities = open_source(machine), Identities()
    before = identities.complete(source.read(frozenset(Tier)).devices)[0]
    blank = dict.fromkeys(h100(0)["values"]) | {"54": "<<<NULL>>>", "50": "<<<NULL>>>"}
    machine.save(gpus=[{"id": 0, "values": blank}, h100(1)])
    lost = identities.complete(read_until(source, lambda reading: reading.devices[0].lost).devices)[0]
    assert lost.lost
    assert before.model is not ABSENT
    names = identity_names(Device)
    assert [getattr(lost, name) for name in names] == [getattr(before, name) for name in names]
    assert own(lost).inforom_versions == own(before).inforom_versions
    assert lost.memory_used_bytes is ABSENT


def test_a_row_that_does_not_fit_is_counted(
    machine: Machine, open_source: Callable[[Machine], DcgmSource]
) -> None:
    source = open_source(machine)
    machine.save(rubbish="GPU 0     99\nfoo\n\x00\xff\n")
    reading = read_until(source, lambda reading: bool(reading.failures))
    assert reading.failures["row"] >= 1
    assert reading.devices[0].temperature_celsius == {"gpu": 68}


def test_the_stream_dies(machine: Machine, open_source: Callable[[Machine], DcgmSource]) -> None:
    source = open_source(machine)
    machine.save(die=True)
    with pytest.raises(SourceError, match="exit code 235: Error getting values information") as caught:
        read_until(source, lambda reading: False)
    assert caught.value.code == 235
    assert "systemctl start nvidia-dcgm" in str(caught.value)


def test_old_rows_in_the_pipe_are_dropped(
    machine: Machine, open_source: Callable[[Machine], DcgmSource], clock: ShiftedClock
) -> None:
    source = open_source(machine)
    old = machine.last_pid()
    wait_for(lambda: machine.samples() > 3, "rows in the pipe")
    machine.save(gpus=[h100(0, **{"150": 99})])
    clock.ahead += 60  # nobody has read for a minute
    assert [device.temperature_celsius for device in source.read(FAST).devices] == [{"gpu": 99}]
    assert not is_running(old)


def test_an_engine_that_hangs_is_noticed_and_killed(
    machine: Machine, open_source: Callable[[Machine], DcgmSource], clock: ShiftedClock
) -> None:
    source = open_source(machine)
    process = machine.last_pid()
    machine.save(hang=True)

    def let_time_pass(reading: Reading) -> bool:
        clock.ahead += 0.5  # read often enough; a stream that lives has a new row each time
        return False

    with pytest.raises(SourceError, match=r"printed no row for .* the DCGM host engine may hang"):
        read_until(source, let_time_pass)
    source.close()
    assert not is_running(process)


def test_a_runner_opens_it_again_after_it_died(machine: Machine) -> None:
    worker = SourceWorker(load_source("dcgm"), machine.settings, SystemClock())
    try:
        worker.read_once()
        assert worker.status().up
        machine.save(die=True)

        def is_down() -> bool:
            worker.read_once()
            return not worker.status().up

        wait_for(is_down, "the end of the stream")
        assert (worker.status().code, worker.fresh()) == (235, ABSENT)
        machine.save(die=False)
        while not worker.status().up:
            worker.read_once()
        assert worker.fresh() is not ABSENT
    finally:
        worker.close_reader()


def test_no_host_engine(machine: Machine) -> None:
    machine.save(no_engine=True)
    with pytest.raises(SourceError, match=r"Unable to connect to host engine.*nv-hostengine"):
        DcgmSource(machine.settings)


def test_no_dcgmi() -> None:
    with pytest.raises(SourceMissing, match="no-such-dcgmi was not found; install datacenter-gpu-manager"):
        DcgmSource(make_settings(dcgmi_command="no-such-dcgmi"))


@pytest.mark.parametrize("command", ["", "dcgmi 'unfinished"])
def test_a_command_that_is_none(command: str) -> None:
    with pytest.raises(UsageError, match="--dcgmi-command"):
        DcgmSource(make_settings(dcgmi_command=command))


def test_a_command_that_does_not_answer_is_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.save(mute=True)
    monkeypatch.setattr("gpuscope.vendors.nvidia.dcgm.ANSWER_SECONDS", 0.3)
    with pytest.raises(SourceError, match=r"did not answer in 0.3 s"):
        DcgmSource(machine.settings)


def test_a_wrapper_and_its_children_are_killed(machine: Machine, tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f'"{sys.executable}" "{FAKE}" "$@" &\nwait\n')
    machine.settings = make_settings(interval=0.1, dcgmi_command=f"sh {wrapper}")
    source = DcgmSource(machine.settings)
    assert source.read(FAST).devices
    child = machine.last_pid()
    assert Path(f"/proc/{child}").exists()
    source.close()
    wait_for(lambda: not is_running(child), "the end of the wrapper's child")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_prints_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = [sys.executable, "-c", "while True: print('x' * 65536, end='')"]
    stream = stream_module.DmonStream(endless, [54], silence_seconds=5)
    try:
        with pytest.raises(SourceError, match="bytes without a line end"):
            stream.wait_for_rows(30)
    finally:
        stream.close()


def test_a_counters_file_that_changes_is_followed(
    machine: Machine, open_source: Callable[[Machine], DcgmSource], tmp_path: Path
) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
    machine.settings = make_settings(
        interval=0.1, dcgmi_command=machine.settings.view(DcgmSettings).dcgmi_command, counters=str(counters)
    )
    machine.save(known=[*machine.state["known"], 440], gpus=[h100(0, **{"440": 77})])
    source = open_source(machine)
    assert 440 not in own(source.read(frozenset(Tier)).devices[0]).dcgm_fields
    counters.write_text("DCGM_FI_DEV_NVLINK_BANDWIDTH_L0, counter, x\n")
    assert own(source.read(frozenset(Tier)).devices[0]).dcgm_fields[440] == 77


def test_another_host_engine(machine: Machine, open_source: Callable[[Machine], DcgmSource]) -> None:
    machine.settings = make_settings(
        interval=0.1, dcgmi_command=machine.settings.view(DcgmSettings).dcgmi_command, dcgm_host="node7:5555"
    )
    open_source(machine).read(FAST)
    assert all("--host node7:5555" in command for command in machine.commands())


def test_ids_of_the_counters_file_and_added_ids_are_requested(tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("# comment\nDCGM_FI_DEV_NVLINK_BANDWIDTH_L0, counter, help\nnonsense\n")
    ids = wanted_ids(Settings(counters=str(counters), fields=("+131", "abc")))
    assert {440, 131} <= set(ids)
    assert wanted_ids(Settings(counters=str(tmp_path / "none.csv"))) == wanted_ids(Settings())


def test_costly_ids_only_for_the_family_that_exports_them() -> None:
    assert not {200, 201} & set(wanted_ids(Settings()))
    assert {200, 201} <= set(wanted_ids(Settings(families=("dcgm_legacy",))))


def test_default_ids_fit_one_stream() -> None:
    lists = id_lists(wanted_ids(Settings()))
    assert len(lists) == 1
    assert len(lists[0]) <= MAX_IDS


def test_binary_fields_are_never_requested() -> None:
    assert usable_ids([60, 100], frozenset({60, 100})) == (100,)


def test_without_a_field_list_the_ids_of_every_dcgm_are_requested() -> None:
    assert parse_field_list("no list\nat all\n") == frozenset()
    assert usable_ids([100, 253, 1001], frozenset()) == (100,)


@pytest.mark.parametrize(("version", "count"), [("3.3.9", 420), ("4.6.0", 643)])
def test_recorded_field_lists(version: str, count: int) -> None:
    path = recording(f"captures/dcgmi/{version}/h100-busy.dmon-l.txt")
    known = parse_field_list(path.read_text())
    assert len(known) == count
    missing = set(wanted_ids(Settings())) - set(usable_ids(wanted_ids(Settings()), known))
    assert missing == ({153} if version == "3.3.9" else set())


def test_hierarchy_maps_entities_to_the_drivers_ids() -> None:
    text = """\
| Instance Hierarchy                                                |
| GPU 0             | GPU GPU-12345678-1234 (EntityID: 0)           |
| -> I 0/1          | GPU Instance (EntityID: 2)                    |
|    -> CI 0/1/0    | Compute Instance (EntityID: 2)                |
| -> I 0/13         | GPU Instance (EntityID: 0)                    |
|    -> CI 0/13/2   | Compute Instance (EntityID: 0)                |
|    -> CI 0/13/3   | Compute Instance (EntityID: 1)                |
"""
    assert parse_hierarchy(text) == (MigSlot(2, 0, 1, 0), MigSlot(0, 0, 13, 2))
    assert parse_hierarchy("rubbish | -> I x/1 |") == ()


def test_recorded_hierarchy() -> None:
    path = recording("captures/dcgmi/4.6.0/a100-mig3.discovery-c.txt")
    assert {(slot.entity, slot.gpu_instance) for slot in parse_hierarchy(path.read_text())} == {
        (2, 1),
        (1, 5),
        (0, 13),
    }
