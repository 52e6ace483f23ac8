"""Every field of a reading, from a source through merge and snapshot to the text of /metrics."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.agent.families import family_names, load_family
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Absent, Device, Driver, Instance, Reading, Snapshot, Uuid
from gpuscope.vendors.nvidia.dcgm_fields import (
    FIELD_READINGS,
    REQUESTED_DRIVER_READINGS,
    REQUESTED_FIELD_READINGS,
    names_by_id,
)
from gpuscope.vendors.nvidia.nvidia_values import INSTANCE_NAMES, NVIDIA, NvidiaValues, make_instance
from tests.fakes import FakeClock, FakeSource, gpu, replace_readings, spec_of

INSTANCE = make_instance(uuid=Uuid("MIG-0"), gpu_instance=7, compute_instance=0)
BY_WORKER = {"errors", "failures", "down", "unfinished"}
"""Counted and reported by the source's worker; they are not numbers of the machine."""


def filled(hint: Any) -> Any:
    """A value of this type that is neither absent, empty nor the default."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # Maybe[X]
        return filled(next(arg for arg in args if arg is not Absent))
    if origin is tuple:
        return (filled(args[0]),) if args[-1] is ... else tuple(filled(arg) for arg in args)
    if origin is not None and issubclass(origin, Mapping):
        return {filled(args[0]): filled(args[1])}
    if origin is frozenset:
        return frozenset({filled(args[0])})
    if hasattr(hint, "__supertype__"):  # NewType
        return filled(hint.__supertype__)
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return hint(**filled_fields(hint))
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    return {bool: True, int: 7, float: 7.0, str: "7"}[hint]


def collected(*readings: Reading) -> Snapshot:
    """The snapshot of sources that read this, the most trusted first."""
    clock, settings = FakeClock(), Settings()
    plan = []
    for name, reading in zip(("first", "nvml"), readings, strict=True):
        source = FakeSource(lambda reading=reading: reading)  # type: ignore[misc]
        plan.append(PlannedSource(SourceWorker(spec_of(source, name), settings, clock)))
        plan[-1].worker.read_once()
    return Collector(plan, node="n", interval=1.0, clock=clock, ledger=ErrorLedger(None)).compose()


KEYS: dict[str, str | tuple[str, ...]] = {
    "clock_default_application_hertz": "graphics",
    "cpu_affinity": "0",
    "cpu_guest_seconds": ("0", "user"),
    "cpu_seconds": ("0", "user"),
    "ecc_errors": ("corrected", "volatile"),
    "engine_active_ratio": "sm",
    "ecc_location_errors": ("corrected", "volatile", "l2_cache"),
    "ecc_sram_errors": ("parity", "volatile"),
    "gsp_firmware": "current",
    "inforom_versions": "image",
    "library_versions": "cuda",
    "memory_affinity": "0",
    "modes": "confidential_compute",
    "link_errors": ("0", "replay"),
    "link_bytes_each": ("0", "tx"),
    "nvlink5_bit_error_ratio": ("0", "symbol"),
    "nvlink5_errors": ("0", "recovery"),
    "pci_ids": "device",
    "platform": "slot",
    "profiled_nvlink_link_bytes_per_second": ("0", "tx"),
    "protected_memory_bytes": "total",
    "remapped_rows_inactive": "uncorrectable",
    "tensor_pipe_active_ratio": "imma",
}
"""Keys of the mappings from which a family takes only certain keys, or which have several labels."""


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def filled_fields(reading_type: Any) -> dict[str, Any]:
    return {
        name: {KEYS[name]: filled(get_args(hint)[1])} if name in KEYS else filled(hint)
        for name, hint in get_type_hints(reading_type).items()
    }


IDENTITY = {"uuid", "index", "vendor", "ids", "memory_group", "vendor_values"}
OWN = filled_fields(NvidiaValues)
DEVICE = without(filled_fields(Device), *IDENTITY, "lost", "processes_known", "is_split", "instances") | OWN
INSTANCE_FIELDS = without(filled_fields(Instance), *IDENTITY, "processes_known") | {
    name: OWN[name] for name in sorted(INSTANCE_NAMES & OWN.keys())
}
DRIVER = filled_fields(Driver)
OTHERS = without(filled_fields(Reading), "drivers", "devices", *BY_WORKER)


@pytest.mark.parametrize("name", DRIVER)
def test_the_drivers_field_of_a_second_source_reaches_the_snapshot(name: str) -> None:
    drivers = {NVIDIA: Driver(**{name: DRIVER[name]})}
    assert collected(Reading(drivers={NVIDIA: Driver()}), Reading(drivers=drivers)).drivers == drivers


@pytest.mark.parametrize("name", DEVICE)
def test_a_gpus_field_of_a_second_source_reaches_the_snapshot(name: str) -> None:
    device = gpu(**{name: DEVICE[name]})
    assert collected(Reading(devices=(gpu(),)), Reading(devices=(device,))).devices == (device,)


@pytest.mark.parametrize("name", INSTANCE_FIELDS)
def test_an_instances_field_of_a_second_source_reaches_the_snapshot(name: str) -> None:
    device = gpu(instances=(replace_readings(INSTANCE, **{name: INSTANCE_FIELDS[name]}),))
    first = gpu(instances=(INSTANCE,))
    assert collected(Reading(devices=(first,)), Reading(devices=(device,))).devices == (device,)


@pytest.mark.parametrize("name", OTHERS)
def test_a_readings_other_field_reaches_the_snapshot(name: str) -> None:
    snapshot = collected(Reading(), Reading(devices=(gpu(),), **{name: OTHERS[name]}))
    if name == "processes":  # their owners are looked up on the way
        assert snapshot.processes is not ABSENT
        assert [process.pid for process in snapshot.processes] == [7]
    else:
        assert getattr(snapshot, name) == OTHERS[name]


@pytest.fixture(scope="module")
def all_families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Reading], set[bytes]]:
    """The lines of all families, with all DCGM fields that have a reading; without the
    agent's own cost, which differs between two runs."""
    labels = "DCGM_FI_DRIVER_VERSION, label, x\nDCGM_FI_NVML_VERSION, label, x\n"
    ids = [row.id for row in (*FIELD_READINGS, *REQUESTED_FIELD_READINGS)] + [*REQUESTED_DRIVER_READINGS]
    counters = tmp_path_factory.mktemp("dcgm") / "counters.csv"
    counters.write_text(labels + "".join(f"{names_by_id()[i][0]}, gauge, x\n" for i in ids))
    settings = Settings(counters=str(counters))

    def lines(reading: Reading) -> set[bytes]:
        snapshot = replace(collected(Reading(devices=(gpu(),)), reading), agent=ABSENT)
        builders = [load_family(name).build(settings) for name in family_names()]
        return {line for b in builders for line in encode_text(b.to_families(snapshot)).splitlines()}

    return lines


def not_exported(
    lines: Callable[[Reading], set[bytes]], values: Mapping[str, Any], to_reading: Callable[..., Reading]
) -> set[str]:
    """The fields without which the text is the same."""
    whole = lines(to_reading(**values))
    assert lines(to_reading(**values)) == whole
    return {
        name for name in values if lines(to_reading(**{k: v for k, v in values.items() if k != name})) == whole
    }


INTEGRATED = {"busy_seconds", "utilization_mean_ratio", "nvlink_aggregate_bytes"}
"""A counter or a rate is made of them, which exists from the second snapshot on."""

NOT_EXPORTED = {"board_part_number"}
"""No family has it."""

AS_PRINTED = {"smi_cells", "dcgm_fields"}
"""Another program's output, which replaces the readings; the tests of the captures follow it."""


def test_every_field_of_a_gpu_is_exported(all_families: Callable[[Reading], set[bytes]]) -> None:
    drivers = {NVIDIA: Driver(driver_version="580", library_versions={"cuda": "13.0"})}
    values = without(DEVICE, *AS_PRINTED)
    missing = not_exported(all_families, values, lambda **v: Reading(drivers=drivers, devices=(gpu(**v),)))
    assert missing == INTEGRATED | NOT_EXPORTED | {"throttle_reasons"}, "these follow from their mask"


def test_every_field_of_the_driver_is_exported(all_families: Callable[[Reading], set[bytes]]) -> None:
    device = gpu(**without(DEVICE, *AS_PRINTED))
    assert not not_exported(
        all_families, DRIVER, lambda **v: Reading(drivers={NVIDIA: Driver(**v)}, devices=(device,))
    )


def test_every_field_of_an_instance_is_exported(all_families: Callable[[Reading], set[bytes]]) -> None:
    def to_reading(**values: Any) -> Reading:
        return Reading(devices=(gpu(instances=(replace_readings(INSTANCE, **values),)),))

    assert not not_exported(all_families, without(INSTANCE_FIELDS, *AS_PRINTED), to_reading)
