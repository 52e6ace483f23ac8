"""A DCGM value converted to a reading and back is unchanged: source and families share one table."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.model.readings import Device
from gpuscope.vendors.nvidia.dcgm.devices import DeviceBuilder
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity, Value
from gpuscope.vendors.nvidia.dcgm_fields import (
    FIELD_READINGS,
    TEXT_READINGS,
    dcgm_fields,
    ids_by_name,
    kind_of,
    names_by_id,
)
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmEntity
from gpuscope.vendors.nvidia.families.dcgm.field_values import FieldValues
from gpuscope.vendors.nvidia.nvidia_values import OWN_NAMES
from tests.examples import examples
from tests.fakes import replace_readings
from tests.metrics.dcgm_machines import snapshot

ALIVE: dict[int, Value] = {54: "GPU-1", 100: 1}


def without_dcgm(values: dict[int, Value]) -> Device:
    (device,) = DeviceBuilder().to_devices({DmonEntity("GPU", 0): {**ALIVE, **values}}, ())
    return replace_readings(device, dcgm_fields={})


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.sampled_from(FIELD_READINGS))
def test_numbers(data: st.DataObject, row: object) -> None:
    field_id = row.id  # type: ignore[attr-defined]
    numbers = (
        st.integers(0, 10**12) if kind_of(field_id) == "i" else st.floats(0, 1e6).map(lambda n: round(n, 3))
    )
    value = data.draw(numbers)
    device = without_dcgm({field_id: value})
    again = FieldValues(snapshot(device), {}).of(field_id, DcgmEntity(device))
    assert again == (value if kind_of(field_id) == "i" else pytest.approx(value))
    assert type(again) is type(value)


@pytest.mark.parametrize("field_id", sorted(TEXT_READINGS))
def test_texts(field_id: int) -> None:
    device = without_dcgm({field_id: "some text"})
    assert FieldValues(snapshot(device), {}).of(field_id, DcgmEntity(device)) == "some text"


def test_every_row_names_a_field_and_a_reading() -> None:
    attributes = {*(field.name for field in fields(Device)), *OWN_NAMES}
    rows = {row.id: row.reading for row in FIELD_READINGS} | TEXT_READINGS
    assert len(rows) == len(FIELD_READINGS) + len(TEXT_READINGS)
    for field_id, reading in rows.items():
        assert field_id in dcgm_fields()
        assert reading.partition(".")[0] in attributes


def test_names_are_unique_and_every_exported_field_has_one() -> None:
    assert sum(len(names) for names in names_by_id().values()) == len(ids_by_name())
    unnamed = {field_id for field_id in dcgm_fields() if field_id not in names_by_id()}
    assert unnamed == {210, 211, 220, 221}, "samples and process lists, which nobody exports"
