"""The dmon table: for any values and version, a value is parsed exactly or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import SourceError
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity, DmonRow, DmonTable
from gpuscope.vendors.nvidia.dcgm_fields import dcgm_fields, kind_of
from tests.examples import examples
from tests.fake_dcgmi.layouts import LAYOUTS, Column, LeftAligned, Value, text_of
from tests.recordings import recording

NUMBERS = [field_id for field_id, field in dcgm_fields().items() if field.kind in "id"]
TEXTS = [field_id for field_id, field in dcgm_fields().items() if field.kind == "s"]
WORDS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x24F, categories=("L", "N", "P", "S")), min_size=1
)
PHRASES = st.lists(WORDS, min_size=1, max_size=4).map(" ".join).filter(lambda text: text != "N/A")
ENTITIES = st.tuples(st.sampled_from(["GPU", "GPU-I", "GPU-CI"]), st.integers(0, 127))


def parse(field_ids: list[int], lines: list[str]) -> tuple[list[DmonRow], DmonTable]:
    table = DmonTable(field_ids)
    return [row for line in lines if (row := table.feed(line + "\n")) is not None], table


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[int], list[Column], list[tuple[str, list[Value]]]]:
    version = draw(st.sampled_from(sorted(LAYOUTS)))
    field_ids = draw(st.lists(st.sampled_from(NUMBERS + TEXTS), min_size=1, max_size=12))
    columns = [
        Column(
            dcgm_fields()[i].short_name,
            draw(st.integers(3, 40)),
            draw(st.sampled_from(["", " C", "#", "KB/s"])),
        )
        for i in field_ids
    ]
    # A short name never exceeds its column in any version.
    columns = [Column(c.short, max(c.width, len(c.short)), c.unit) for c in columns]
    rows = []
    for kind, number in draw(st.lists(ENTITIES, min_size=1, max_size=4)):
        values = [draw(st.none() | _value(kind_of(field_id))) for field_id in field_ids]
        rows.append((f"{'GPU' if version == '1.x' else kind} {number}", values))
    return version, field_ids, columns, rows


def _value(kind: str) -> st.SearchStrategy[Value]:
    if kind == "i":
        return st.integers(-(2**31) + 4, 2**62).filter(lambda n: not 0x7FFFFFF0 <= n <= 0x7FFFFFF3)
    if kind == "d":
        return st.floats(-1e6, 1e6).map(lambda number: round(number, 3) + 0.0)
    return PHRASES


@settings(max_examples=examples(200), deadline=None)
@given(tables())
def test_every_version_is_parsed_exactly_or_rejected(
    table: tuple[str, list[int], list[Column], list[tuple[str, list[Value]]]],
) -> None:
    version, field_ids, columns, rows = table
    layout = LAYOUTS[version]
    lines = [*layout.header(columns), *(layout.row(entity, columns, values) for entity, values in rows)]
    parsed, parser = parse(field_ids, lines)
    assert len(parsed) + parser.rejected == len(rows)
    if isinstance(layout, LeftAligned):
        assert parser.rejected == 0, "a left-aligned table is never ambiguous"
    wanted: dict[DmonEntity, list[list[Value]]] = {}
    for entity, values in rows:
        kind, number = entity.rsplit(" ", 1)
        wanted.setdefault(DmonEntity(kind, int(number)), []).append(values)
    for row in parsed:
        assert any(_agrees(row, field_ids, columns, values, layout) for values in wanted[row.entity]), row


def _agrees(
    row: DmonRow, field_ids: list[int], columns: list[Column], values: list[Value], layout: object
) -> bool:
    # A field asked for twice is one value in the row: the later column's, unless that is absent.
    expected: dict[int, Value] = {}
    for field_id, column, value in zip(field_ids, columns, values, strict=True):
        was_cut = isinstance(layout, LeftAligned) and len(text_of(value)) > column.width + 6
        looks_cut = isinstance(layout, LeftAligned) and (
            text_of(value).endswith("...") and len(text_of(value)) == column.width + 6
        )
        if value is not None and not was_cut and not looks_cut:
            expected[field_id] = value
    return dict(row.values) == expected


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(max_size=80), max_size=20))
def test_rubbish_never_raises_anything_but_a_source_error(lines: list[str]) -> None:
    table = DmonTable([100, 54])
    for line in ["#Entity   SMCLK  UUID#  ", *lines]:
        try:
            table.feed(line)
        except SourceError:
            assert line.startswith("#")


@pytest.mark.parametrize("version", ["3.3.9", "4.4", "4.6"])
def test_a_missing_cell_that_shifts_the_row_rejects_it(version: str) -> None:
    # DCGM 3 prints nothing for a cell it does not have; every later number would be another field's.
    layout, columns = LAYOUTS[version], [Column("TMPTR", 5), Column("POWER", 10), Column("GPUTL", 10)]
    good = layout.row("GPU 0", columns, [69, 417.98, 98])
    shifted = layout.row("GPU 1", columns[1:], [417.98, 98])
    rows, table = parse([150, 155, 203], [*layout.header(columns), good, shifted])
    assert rows == [DmonRow(DmonEntity("GPU", 0), {150: 69, 155: 417.98, 203: 98})]
    assert table.rejected == 1


def test_names_with_spaces_do_not_shift_later_columns() -> None:
    for layout in LAYOUTS.values():
        columns = [Column("TMPTR", 5), Column("DVNAM", 25), Column("POWER", 10)]
        lines = [*layout.header(columns), layout.row("GPU 3", columns, [69, "NVIDIA H100 80GB HBM3", 417.98])]
        rows, _ = parse([150, 50, 155], lines)
        assert rows == [DmonRow(DmonEntity("GPU", 3), {150: 69, 50: "NVIDIA H100 80GB HBM3", 155: 417.98})]


def test_a_pushed_row_is_read_when_there_is_one_way_to_read_it() -> None:
    layout = LAYOUTS["2.1"]
    columns = [Column("DRVER", 7), Column("DVNAM", 20), Column("TMPTR", 5)]
    values: list[Value] = ["550.163.01", "NVIDIA H100 80GB HBM3", 69]
    rows, _ = parse([1, 50, 150], [*layout.header(columns), layout.row("GPU 12", columns, values)])
    assert rows == [DmonRow(DmonEntity("GPU", 12), {1: "550.163.01", 50: "NVIDIA H100 80GB HBM3", 150: 69})]
    columns = [Column("A", 3), Column("B", 5)]
    ambiguous = layout.row("GPU 0", columns, ["AAAA BBB", "abcde"])
    rows, table = parse([1, 50], [*layout.header(columns), ambiguous])
    assert (rows, table.rejected) == ([], 1)


def test_zero_is_a_value_and_na_is_none() -> None:
    layout, columns = LAYOUTS["4.6"], [Column("GPUTL"), Column("POWER"), Column("FANSP", 5)]
    rows, _ = parse([203, 155, 191], [*layout.header(columns), layout.row("GPU 0", columns, [0, 0.0, None])])
    assert rows == [DmonRow(DmonEntity("GPU", 0), {203: 0, 155: 0.0})]


@pytest.mark.parametrize("blank", ["<<<NULL>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_FOUND>>>", "<<<NOT_PERM>>>"])
def test_blank_texts_are_no_values(blank: str) -> None:
    columns = [Column("UUID#", 40), Column("PRNAM", 7)]
    rows, _ = parse(
        [54, 3], [*LAYOUTS["4.6"].header(columns), LAYOUTS["4.6"].row("GPU 0", columns, [blank, blank])]
    )
    assert rows == [DmonRow(DmonEntity("GPU", 0), {})]


@pytest.mark.parametrize("number", [2147483632, 9223372036854775794])
def test_blank_numbers_of_old_versions_are_no_values(number: int) -> None:
    columns = [Column("NFELT", 20)]
    rows, _ = parse(
        [409], [*LAYOUTS["3.3.9"].header(columns), LAYOUTS["3.3.9"].row("GPU 0", columns, [number])]
    )
    assert rows == [DmonRow(DmonEntity("GPU", 0), {})]


def test_a_cut_number_is_no_value() -> None:
    columns = [Column("RPCTR", 5)]
    row = LAYOUTS["4.6"].row("GPU 0", columns, [123456789012345])
    assert "..." in row
    rows, _ = parse([202], [*LAYOUTS["4.6"].header(columns), row])
    assert rows == [DmonRow(DmonEntity("GPU", 0), {})]


def test_a_link_of_a_gpu_is_not_the_gpu() -> None:
    columns = [Column("TMPTR", 5)]
    rows, _ = parse([150], [*LAYOUTS["4.6"].header(columns), LAYOUTS["4.6"].row("GPU 0 LINK 1", columns, [5])])
    assert rows == []


def test_a_header_with_unexpected_columns_is_refused() -> None:
    with pytest.raises(SourceError, match="printed 1 columns for 2 fields"):
        parse([150, 155], LAYOUTS["4.6"].header([Column("TMPTR", 5)]))


def captured(version: str, name: str) -> list[str]:
    return recording(f"captures/dcgmi/{version}/{name}").read_text().split("\n")


@pytest.mark.parametrize("version", LAYOUTS)
def test_headers_are_repeated_in_a_long_stream(version: str) -> None:
    layout, columns = LAYOUTS[version], [Column("TMPTR", 5), Column("POWER", 10)]
    lines: list[str] = []
    for number in range(45):
        if number % 10 == 0:
            lines += layout.header(columns)
        lines += [layout.row(f"GPU {gpu}", columns, [40 + gpu, 100.5 + number]) for gpu in range(8)]
    rows, table = parse([150, 155], lines)
    assert table.rejected == 0
    assert [row.values for row in rows] == [
        {150: 40 + gpu, 155: 100.5 + number} for number in range(45) for gpu in range(8)
    ]


STRING_IDS = [50, 52, 53, 54, 55, 56, 57, 58, 1, 3]


@pytest.mark.parametrize("version", ["3.3.9", "4.6.0"])
def test_recorded_strings(version: str) -> None:
    rows, table = parse(STRING_IDS, captured(version, "h100-busy.dmon-strings.txt"))
    assert table.rejected == 0
    assert len(rows) == 16
    first = next(row for row in rows if row.entity == DmonEntity("GPU", 0))
    assert first.values == {
        50: "NVIDIA H100 80GB HBM3",
        52: 0,
        53: "1562821083900",
        54: "GPU-01000100-0000-0000-0000-000000000000",
        55: 0,
        56: "2.1",
        57: "00000000:1A:00.0",
        58: 590352606,
        1: "550.163.01",
    }


@pytest.mark.parametrize("version", ["3.3.9", "4.6.0"])
def test_recorded_stream_with_repeated_headers(version: str) -> None:
    rows, table = parse([150, 155], captured(version, "h100-busy.dmon-d100-c45.txt"))
    assert table.rejected == 0
    assert len(rows) == 45 * 8
    assert all(row.values.keys() == {150, 155} for row in rows)


def test_recorded_mig_instances() -> None:
    lines = captured("4.6.0", "a100-mig3.dmon-mig-all.txt")
    columns = len(lines[0].split()) - 1
    ids = [54, *range(900, 900 + columns - 1)]
    rows, table = parse(ids, lines)
    assert table.rejected == 0
    kinds = {row.entity.kind for row in rows}
    assert kinds == {"GPU", "GPU-I", "GPU-CI"}
    by_entity = {row.entity: row.values.get(54) for row in rows}
    assert by_entity[DmonEntity("GPU-I", 1)] == "MIG-aaaaaaaa-0000-5000-8000-000000000002"
