"""Captures through the fake nvidia-smi, the real source and the real family, to text: byte for byte.

The expected files of others are what nvidia_gpu_exporter itself exported, without its metrics about
itself (`go_*`, `process_*`, `promhttp_*`, `nvidia_gpu_exporter_build_info`) and without the two that change on
every run (`nvidia_smi_last_collect_duration_seconds`, `nvidia_smi_last_collect_success_timestamp_seconds`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.base.clock import SystemClock
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot, SourceStatus
from gpuscope.vendors.nvidia.families.nvidia_smi.builder import NvidiaSmiBuilder, Options
from gpuscope.vendors.nvidia.nvidia_smi import SOURCE
from tests.fake_smi import CAPTURES, FakeSmi
from tests.fakes import make_settings, replace_readings, xid_total
from tests.goldens import check_golden
from tests.recordings import SETTING, recording, recordings

CHANGES_ON_EVERY_RUN = (
    "nvidia_smi_last_collect_duration_seconds",
    "nvidia_smi_last_collect_success_timestamp_seconds",
)
RECORDED = recordings("captures/nvidia-smi/*.txt")


def collect(fake: FakeSmi) -> Snapshot:
    worker = SourceWorker(
        SOURCE, make_settings(nvidia_smi_command=fake.command, nvidia_smi_timeout=60.0), SystemClock()
    )
    worker.read_once()
    reading = worker.fresh()
    status = worker.status()
    assert reading is not ABSENT, status.why
    assert reading.drivers
    return Snapshot(
        node="node",
        taken_at=0.0,
        drivers=reading.drivers,
        devices=reading.devices,
        processes=reading.processes,
        sources=(status,),
    )


def export(fake: FakeSmi) -> bytes:
    families = NvidiaSmiBuilder(Options(compute_apps=True)).to_families(collect(fake))
    return encode_text(family for family in families if family.name not in CHANGES_ON_EVERY_RUN)


@pytest.mark.parametrize("state", ["idle", "load"])
@pytest.mark.parametrize("capture", RECORDED or [None], ids=lambda path: path.stem if path else "none")
def test_recorded_machines_have_nvidia_gpu_exporters_output(
    tmp_path: Path, capture: Path | None, state: str
) -> None:
    if capture is None:
        pytest.skip(f"no captures of real machines in the folder that {SETTING} names")
    expected = recording(f"captures/expected/{capture.name.removesuffix('.txt')}__{state}.metrics")
    assert export(FakeSmi(tmp_path, capture, state)).decode() == expected.read_text("utf-8")


@pytest.mark.parametrize("state", ["idle", "load"])
@pytest.mark.parametrize("capture", sorted(CAPTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_our_machines(tmp_path: Path, capture: Path, state: str) -> None:
    golden = Path("nvidia_smi") / f"{capture.name.removesuffix('.txt')}__{state}.metrics"
    check_golden(golden, export(FakeSmi(tmp_path, capture, state)))


@pytest.mark.parametrize("capture", [*RECORDED, *sorted(CAPTURES.glob("*.txt"))], ids=lambda path: path.stem)
def test_readings_print_as_the_cells_they_came_from(tmp_path: Path, capture: Path) -> None:
    """Cell -> reading -> printed cell -> metric has the same number as cell -> metric."""
    snapshot = collect(FakeSmi(tmp_path, capture, "load"))
    from_cells = _values(snapshot)
    from_readings = _values(_without_cells(snapshot))
    compared = from_cells.keys() & from_readings.keys()
    assert {key: from_readings[key] for key in compared} == {key: from_cells[key] for key in compared}
    assert len(compared) > 50 * len(snapshot.devices)


def _without_cells(snapshot: Snapshot) -> Snapshot:
    """The same machine as NVML would read it."""
    return replace(
        snapshot,
        devices=tuple(replace_readings(device, smi_cells={}) for device in snapshot.devices),
        sources=tuple(replace(status, name="nvml") for status in snapshot.sources),
    )


def _values(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    return {
        (family.name, str(labels)): family.number(value)
        for family in NvidiaSmiBuilder().to_families(snapshot)
        for labels, value in family.samples
        if family.name != "nvidia_smi_gpu_info"
    }


def test_readings_of_another_source_give_the_driver_reading_exporter(tmp_path: Path) -> None:
    """The same machine without nvidia-smi's cells, as NVML would read it: printed columns and the extras."""
    snapshot = _without_cells(
        collect(FakeSmi(tmp_path, CAPTURES / "linux-x86_64__a100-mig-mixed__550.90.07.txt", "load"))
    )
    cut, whole = snapshot.devices
    activity = {"graphics": 0.875, "sm": 0.5, "tensor": 0.0}
    cut = replace(
        cut,
        energy_joules=987654.321,
        pcie_bytes_per_second={"tx": 1.5e9, "rx": 0.0},
        instances=tuple(replace(instance, engine_active_ratio=activity) for instance in cut.instances),
    )
    status = SourceStatus(name="nvml", up=True, why="", code=0)
    xids = (xid_total(63, gpu_uuid=whole.uuid, count=2, last_at=1_700_000_000.25),)
    snapshot = replace(snapshot, devices=(cut, whole), sources=(status,), errors=xids)
    options = Options(compute_apps=True, compute_apps_mig=True, pcie_throughput=True)
    text = encode_text(NvidiaSmiBuilder(options).to_families(snapshot))
    check_golden(Path("nvidia_smi") / "a100-mig-mixed__from-readings.metrics", text)
