"""Answers that are split while they arrive: the same elements and the same frame as of the whole JSON."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.engines import answer_text
from gpuscope.history.engines.answer_text import ListText, SeriesText
from gpuscope.history.engines.query_engine import EngineResultTooLarge

TEXTS = st.text(max_size=6) | st.sampled_from(
    ['[{"metric":', ',{"metric":', '"},{"', "},{", '"data":[', "]", "\\", '","', "\U0001f600"]
)
LABELS = st.dictionaries(TEXTS, TEXTS, max_size=3)
POINTS = st.lists(st.tuples(st.integers(0, 9).map(float), TEXTS), max_size=3)
SERIES = st.tuples(LABELS, POINTS).map(lambda one: {"metric": one[0], "values": one[1]})
ELEMENTS = TEXTS | LABELS | st.integers(0, 10**6) | st.lists(st.floats(0, 1), max_size=2) | st.none()


def pieces(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@given(st.lists(SERIES, max_size=5), st.lists(TEXTS, max_size=2), st.integers(1, 80), st.integers(1, 60))
def test_series_of_a_result(series: list[Any], warnings: list[str], size: int, batch: int) -> None:
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}, "warnings": warnings}
    text, found = SeriesText(batch), []
    for piece in pieces(orjson.dumps(answer), size):
        found += orjson.loads(b"[" + text.feed(piece) + b"]")
    last, frame = text.finish()
    found += orjson.loads(b"[" + last + b"]")
    assert found == orjson.loads(orjson.dumps(series))
    assert orjson.loads(frame) == {**answer, "data": {"resultType": "matrix", "result": []}}


@given(st.lists(ELEMENTS, max_size=6), st.integers(1, 80), st.integers(1, 60), st.booleans())
def test_elements_of_a_list(elements: list[Any], size: int, batch: int, is_indented: bool) -> None:
    answer = {"status": "success", "data": elements, "warnings": ["[", "]"]}
    body = orjson.dumps(answer, option=orjson.OPT_INDENT_2 if is_indented else 0)
    text, found = ListText("data", batch), []
    for piece in pieces(body, size):
        found += text.feed(piece)
    last, frame = text.finish()
    assert found + last == elements
    assert orjson.loads(frame) == {**answer, "data": []}


@pytest.mark.parametrize("body", [b'{"status":"error","error":"no"}', b'{"data":{"result":[]}}', b"", b"[1"])
def test_without_the_list_all_is_frame(body: bytes) -> None:
    for text in (SeriesText(), ListText("activeTargets")):
        assert not text.feed(body)
        last, frame = text.finish()
        assert not last
        assert frame == body


@pytest.mark.parametrize("tail", [b"", b"[" * 100_000, b"{", b'"abc', b"nul", b"9" * 5_000])
def test_a_list_without_an_end_is_a_value_error(tail: bytes) -> None:
    listed, series = ListText("data"), SeriesText()
    listed.feed(b'{"data":[1,' + tail)
    series.feed(b'{"result":[{"metric":{},"values":[]},{"metric":' + tail)
    for text in (listed, series):
        with pytest.raises(ValueError, match=r".*"):
            text.finish()


def test_an_element_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_text, "MAX_ELEMENT_BYTES", 100)
    for text, begin in ((SeriesText(), b'{"result":[{"metric":{"a":"'), (ListText("data"), b'{"data":["')):
        text.feed(begin)
        with pytest.raises(EngineResultTooLarge, match="larger than 100 bytes"):
            text.feed(b"x" * 100)
