"""The counters file is parsed like Go's CSV; every mistake is reported with line, value and fix."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.vendors.nvidia.dcgm_fields import dcgm_fields, ids_by_name
from gpuscope.vendors.nvidia.families.dcgm.counters_csv import (
    TYPES,
    CsvError,
    each_once,
    load_counters,
    parse_counters,
    read_records,
)
from gpuscope.vendors.nvidia.families.dcgm.table import DEFAULT_COUNTERS, EXPORTER_COUNTERS, Counter
from tests.examples import examples

NUMBER_NAMES = sorted(
    name
    for name, field_id in ids_by_name().items()
    if field_id in dcgm_fields()
    and dcgm_fields()[field_id].kind in "id"
    and dcgm_fields()[field_id].level in (0, 1, 4, 5)
)


def parse(text: str) -> tuple[Counter, ...]:
    return parse_counters(text, "counters file c.csv")


def test_the_usual_file() -> None:
    text = (
        "# Format\n\nDCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).\r\n"
        'DCGM_FI_DEV_SM_CLOCK,  gauge, "SM clock, in MHz, ""really""."\n'
        "DCGM_FI_DRIVER_VERSION, label, Driver Version\n"
        "DCGM_EXP_XID_ERRORS_COUNT, counter, XIDs"
    )
    assert parse(text.replace(', "SM', ',"SM')) == (
        Counter(1, "DCGM_FI_DRIVER_VERSION", "label", "Driver Version"),
        Counter(100, "DCGM_FI_DEV_SM_CLOCK", "gauge", 'SM clock, in MHz, "really".'),
        Counter(207, "DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."),
        Counter(9001, "DCGM_EXP_XID_ERRORS_COUNT", "counter", "XIDs"),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "# ok\nDCGM_FI_DEV_SM_CLOCK, gauge\n",
            "line 2: 'DCGM_FI_DEV_SM_CLOCK, gauge' has 2 fields, expected 3: name, type, help",
        ),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, a, b", "has 4 fields, expected 3.*in quotes"),
        ("   \n", "line 1: '   ' has 1 fields"),
        (" # DCGM_FI_DEV_SM_CLOCK, gauge, x", r"line 1: '# DCGM_FI_DEV_SM_CLOCK' is not a DCGM field"),
        ("\n\nDCGM_FI_DEV_SM_CLOK, gauge, x", "line 3: 'DCGM_FI_DEV_SM_CLOK' is not .* mean DCGM_FI_DEV_SM_"),
        ("DCGM_FI_DEV_SM_CLOCK, gague, x", "line 1: 'gague' is not a metric type; use one of gauge, counter"),
        ("DCGM_EXP_P2P_STATUS, label, x", "'label' is not a metric type"),
        ('DCGM_FI_DEV_SM_CLOCK, gauge, the "SM"', 'line 1 has a " in a field that does not start with one'),
        ('DCGM_FI_DEV_SM_CLOCK, gauge,"never closed', 'line 1 has a " that is never closed'),
        ('DCGM_FI_DEV_SM_CLOCK,"gauge" ,x', 'line 1 has text after a closing "'),
        ("\tDCGM_FI_DEV_SM_CLOCK, gauge, x", "is not a DCGM field"),
    ],
)  # fmt: skip
def test_mistakes_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        parse(text)
    assert str(caught.value).startswith("counters file c.csv, line ")
    assert caught.value.exit_code == 2


def test_a_quoted_field_may_have_lines() -> None:
    text = 'a,b,"one\ntwo"\nx,y,z\n'
    assert [(record.line, record.fields) for record in read_records(text)] == [
        (1, ("a", "b", "one\ntwo")),
        (3, ("x", "y", "z")),
    ]


def test_the_first_row_of_a_field_counts() -> None:
    counters = parse("DCGM_FI_DEV_GPU_TEMP, gauge, one\nDCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, two\n")
    assert [counter.help for counter in counters] == ["one"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("DCGM_FI_DEV_NAME, gauge, x", "its type should be label"),
        ("DCGM_FI_DEV_SUPPORTED_CLOCKS, gauge, x", "is not a number"),
        ("DCGM_FI_DEV_CPU_TEMP_CURRENT, gauge, x", "is not a field of GPUs"),
    ],
)
def test_rows_that_would_break_the_scrape_are_left_out_and_logged(
    line: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert parse(line) == ()
    assert words in caplog.text


def test_installed_files_are_known_without_being_there(tmp_path: Path) -> None:
    assert load_counters("/etc/dcgm-exporter/dcp-metrics-included.csv") == each_once(DEFAULT_COUNTERS)
    old = load_counters("/etc/dcgm-exporter/1.x-compatibility-metrics.csv")
    assert len(old) == 20
    with pytest.raises(UsageError, match="does not exist; set another with --counters"):
        load_counters(str(tmp_path / "default-counters.csv"))
    with pytest.raises(UsageError, match="cannot be read"):
        load_counters(str(tmp_path))


HELP = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30).map(lambda text: text.strip(" "))


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(st.sampled_from(NUMBER_NAMES), st.tuples(st.sampled_from(TYPES), HELP), max_size=8))
def test_any_file_python_writes_reads_back(rows: dict[str, tuple[str, str]]) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for name, (kind, help_text) in rows.items():
        writer.writerow([name, kind, help_text])
    expected = each_once([Counter(ids_by_name()[name], name, *row) for name, row in rows.items()])
    assert parse(buffer.getvalue()) == expected


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet=st.sampled_from(list('ab",#\n\r ')) | st.characters(), max_size=60))
def test_any_text_is_counters_or_one_sentence(text: str) -> None:
    try:
        sentence = ""
        parse(text)
    except UsageError as error:
        sentence = str(error)
    assert not sentence or sentence.startswith("counters file c.csv, line ")


@settings(max_examples=examples(150), deadline=None)
@given(st.text(alphabet=st.sampled_from(list('ab",\n')), max_size=40))
def test_records_keep_every_character_but_the_punctuation(text: str) -> None:
    records, line = [], 1
    try:
        records = list(read_records(text))
    except CsvError as error:
        line = error.line
        text = ""
    assert 1 <= line <= 41
    letters = [character for record in records for field in record.fields for character in field]
    assert [c for c in letters if c in "ab"] == [c for c in text if c in "ab"]


def test_exporters_own_counters_have_their_ids() -> None:
    assert sorted(EXPORTER_COUNTERS.values()) == [9001, 9002, 9003, 9004]
