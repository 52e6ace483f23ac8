"""`VectorText` reads what an engine answers as JSON's reader does, and decodes each label set once."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.engines.answer_text import AnswerMemory, SeriesText
from gpuscope.history.engines.query_engine import EngineBadQuery, EngineResultTooLarge
from gpuscope.history.engines.vector_text import (
    ANSWERS_PER_GENERATION,
    LabelDicts,
    SharedLabels,
    VectorText,
    read_vector,
)
from gpuscope.history.promql.result import Vector

_TEXTS = st.text(max_size=8) | st.sampled_from(
    ['"]},{"metric":{', ',"value":[1,"', '\\"]}]', '"result":[{"metric":', "{}", '},"value":[', "\\"]
)
_ROWS = st.lists(st.tuples(st.dictionaries(_TEXTS, _TEXTS, max_size=3), st.floats()), max_size=6)


def answer(rows: list[tuple[dict[str, str], float]], **more: Any) -> dict[str, Any]:
    result = [{"metric": labels, "value": [1794854833.135, _text(value)]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


def _text(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), repr(value))


def read(reader: VectorText, body: bytes, max_series: int | None = None) -> tuple[Vector, int]:
    """The vector, and how many batches were read as JSON."""
    text, rows = SeriesText(), reader.begin(max_series)
    batches = [text.feed(body)]
    last, frame = text.finish()
    for batch in (*batches, last):
        if batch:
            rows.add(batch)
    reader.end(is_read=True)
    return rows.to_vector(orjson.loads(frame)), rows.batches_read_as_json


@given(_ROWS, st.lists(_TEXTS, max_size=2))
def test_it_reads_what_json_reads(rows: list[tuple[dict[str, str], float]], warnings: list[str]) -> None:
    document = answer(rows, warnings=warnings)
    expected, reader = read_vector(document), VectorText()
    for _ in range(2):  # decoded, then known
        found, as_json = read(reader, orjson.dumps(document))
        assert as_json == 0
        assert list(found.labels) == list(expected.labels)
        np.testing.assert_array_equal(found.values, expected.values)
        assert (found.time_ms, found.warnings) == (expected.time_ms, expected.warnings)


def test_a_label_set_is_decoded_once_and_stays_the_same_object() -> None:
    reader = VectorText()
    first, _ = read(reader, orjson.dumps(answer([({"uuid": "a"}, 1.0), ({"uuid": "b"}, 2.0)])))
    second, _ = read(reader, orjson.dumps(answer([({"uuid": "b"}, 3.0), ({"uuid": "c"}, 4.0)])))
    assert isinstance(first.labels, SharedLabels)
    assert isinstance(second.labels, SharedLabels)
    assert second.labels.dicts[0] is first.labels.dicts[1]
    assert reader.labels.decoded == 3
    assert LabelDicts().of(second.labels)[0] is first.labels.dicts[1]


def test_label_sets_of_no_recent_answer_are_forgotten() -> None:
    reader = VectorText()
    for number in range(10 * ANSWERS_PER_GENERATION):
        read(reader, orjson.dumps(answer([({"pid": str(number)}, 1.0), ({"pid": "stays"}, 1.0)])))
    assert len(reader.labels) < 3 * ANSWERS_PER_GENERATION
    assert reader.labels.decoded == 10 * ANSWERS_PER_GENERATION + 1


def test_kept_label_sets_are_bounded() -> None:
    memory = AnswerMemory(200_000)
    reader = VectorText(memory)
    for number in range(10):  # 43 kB of new label sets each
        read(reader, orjson.dumps(answer([({"pid": f"{number}-{one}"}, 1.0) for one in range(100)])))
        assert 42_000 <= memory.held_bytes < 180_000


GOOD = orjson.dumps(answer([({"uuid": "a"}, 1.0), ({"uuid": "b"}, 2.0)]))


@pytest.mark.parametrize(
    ("body", "series"),
    [
        (orjson.dumps(answer([({"uuid": "a"}, 1.0)]), option=orjson.OPT_INDENT_2), 1),
        (GOOD.replace(b'"value":', b'"value": '), 2),
        (GOOD.replace(b"1794854833.135", b"1", 1), 2),
        (orjson.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}), 1),
    ],
)
def test_other_forms_are_read_as_json(body: bytes, series: int) -> None:
    reader = VectorText()
    for _ in range(2):
        assert read(reader, GOOD)[1] == 0
        found, _ = read(reader, body)
        expected = read_vector(orjson.loads(body))
        assert (list(found.labels), found.values.tolist()) == (list(expected.labels), expected.values.tolist())
        assert len(found.labels) == series


@pytest.mark.parametrize(
    "body",
    [
        GOOD.replace(b'"value"', b'"histogram"'),
        GOOD.replace(b'"1.0"', b'"one"'),
        GOOD.replace(b'"a"', b"1"),
        GOOD.replace(b'"a"', b'"a'),
        GOOD[:-1],
        GOOD.replace(b'{"uuid":"b"}', b'["uuid"]'),
        b"",
        b"not JSON",
    ],
)
def test_other_texts_are_a_value_error(body: bytes) -> None:
    reader = VectorText()
    read(reader, GOOD)
    with pytest.raises(ValueError, match=r".*"):
        read(reader, body)


def test_errors_that_are_about_the_query_are_the_same() -> None:
    with pytest.raises(EngineResultTooLarge):
        read(VectorText(), GOOD, max_series=1)
    with pytest.raises(EngineBadQuery):
        read(VectorText(), GOOD.replace(b'"vector"', b'"matrix"'))
    with pytest.raises(EngineBadQuery, match="range vector"):
        read(VectorText(), GOOD.replace(b'"value"', b'"values"'))
