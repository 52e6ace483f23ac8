from __future__ import annotations

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample, native_number
from gpuscope.model.exposition.text import encode_openmetrics, encode_text, openmetrics_encoder, text_encoder

UTF8_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def family(*samples: Sample, name: str = "m", kind: str = "gauge", help_text: str = "h") -> MetricFamily:
    return MetricFamily(name, kind, help_text, samples)


def test_prometheus_parses_the_text() -> None:
    labels = LabelSet((("gpu", "0"), ("uuid", "GPU-1")))
    text = encode_text([family(Sample(labels, 0.5), Sample(NO_LABELS, 3))])
    assert text == b'# HELP m h\n# TYPE m gauge\nm{gpu="0",uuid="GPU-1"} 0.5\nm 3\n'


def test_openmetrics_names_counters_and_infos_without_their_suffix() -> None:
    text = encode_openmetrics(
        [
            family(Sample(NO_LABELS, 1), name="busy_seconds_total", kind="counter"),
            family(Sample(LabelSet((("a", "b"),)), 1), name="gpu_info", kind="info"),
        ]
    )
    assert b"# TYPE busy_seconds counter\nbusy_seconds_total 1\n" in text
    assert b'# TYPE gpu info\ngpu_info{a="b"} 1\n' in text
    assert text.endswith(b"# EOF\n")
    assert {f.name: f.type for f in parse_openmetrics(text.decode())} == {
        "busy_seconds": "counter",
        "gpu": "info",
    }


def test_a_gauge_with_the_name_of_a_counter_is_another_family() -> None:
    """Their parser refuses two families of one name."""
    families = [
        family(Sample(NO_LABELS, 2), name="free_seconds"),
        family(Sample(NO_LABELS, 1), name="free_seconds_total", kind="counter"),
    ]
    encoder = openmetrics_encoder()
    for _ in range(2):
        read = {f.name: f.type for f in parse_openmetrics(encoder.encode(families).decode())}
        assert read == {"free_seconds": "gauge", "free_seconds_total": "unknown"}


@pytest.mark.parametrize(
    ("kind", "written"),
    [("counter", "unknown"), ("info", "unknown"), ("untyped", "unknown"), ("gauge", "gauge")],
)
def test_openmetrics_calls_what_lacks_its_suffix_unknown(kind: str, written: str) -> None:
    text = encode_openmetrics([family(Sample(NO_LABELS, 1), name="busy", kind=kind)])
    assert f"# TYPE busy {written}\nbusy 1\n".encode() in text


@given(value=UTF8_TEXT, help_text=UTF8_TEXT)
def test_any_label_value_and_help_survives_the_trip(value: str, help_text: str) -> None:
    families = [family(Sample(LabelSet((("a", value),)), 1.5), help_text=help_text)]
    (read,) = parse_text(encode_text(families).decode())
    assert read.samples[0].labels == {"a": value}
    (read,) = parse_openmetrics(encode_openmetrics(families).decode())
    assert read.samples[0].labels == {"a": value}


def test_undecodable_names_are_sent_as_something() -> None:
    name = b"train\xff.py".decode("utf-8", "surrogateescape")
    assert (
        encode_text([family(Sample(LabelSet((("command", name),)), 1))]).decode("utf-8").count("train?.py") == 1
    )


def test_a_series_and_a_family_stand_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        text = encode_text([family(Sample(NO_LABELS, 1), Sample(NO_LABELS, 2)), family(Sample(NO_LABELS, 3))])
    assert text == b"# HELP m h\n# TYPE m gauge\nm 1\n"
    assert len(caplog.records) == 2


def test_an_empty_family_and_a_wrong_name_are_left_out() -> None:
    assert encode_text([family(), family(Sample(NO_LABELS, 1), name="9lives")]) == b""


@given(st.floats() | st.integers(-(2**63), 2**63))
def test_a_number_reads_back_as_itself(value: float | int) -> None:
    read = type(value)(native_number(value))
    assert read == value or (read != read and value != value)


def test_whole_numbers_have_no_point() -> None:
    assert [native_number(v) for v in (0.0, 1.0, 85899345920.0, 0.25)] == ["0", "1", "85899345920", "0.25"]


numbers = st.sampled_from([0, 1, 1.0, 0.5, 7, math.nan, math.inf])
family_lists = st.lists(
    st.builds(
        lambda name, kind, values: MetricFamily(
            name, kind, "h", [Sample(LabelSet((("i", str(i)),)), v) for i, v in enumerate(values)]
        ),
        st.sampled_from(["a_total", "b_info", "c"]),
        st.sampled_from(["gauge", "counter", "info"]),
        st.lists(numbers, max_size=3),
    ),
    max_size=3,
    unique_by=lambda family: family.name,
)


@given(st.lists(family_lists, max_size=5))
def test_cached_families_change_no_byte(cycles: list[list[MetricFamily]]) -> None:
    text, open_text = text_encoder(), openmetrics_encoder()
    for families in cycles:
        assert text.encode(families) == encode_text(families)
        assert open_text.encode(families) == encode_openmetrics(families)
