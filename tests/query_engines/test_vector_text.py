"""`VectorText` reads what an engine answers as JSON's reader does, and decodes each label set once."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.engines.engine_errors import EngineBadQuery, EngineResultTooLarge
from gpuscope.engines.json_results import read_vector
from gpuscope.engines.shared_labels import ANSWERS_PER_GENERATION, LabelDicts, SharedLabels
from gpuscope.engines.vector_text import VectorText

_TEXTS = st.text(max_size=8) | st.sampled_from(
    ['"]},{"metric":{', ',"value":[1,"', '\\"]}]', '"result":[{"metric":', "{}", '},"value":[', "\\"]
)
_ROWS = st.lists(st.tuples(st.dictionaries(_TEXTS, _TEXTS, max_size=3), st.floats()), max_size=6)


def answer(rows: list[tuple[dict[str, str], float]], **more: Any) -> dict[str, Any]:
    result = [{"metric": labels, "value": [1794854833.135, _text(value)]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


def _text(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), repr(value))


@given(_ROWS, st.lists(_TEXTS, max_size=2))
def test_it_reads_what_json_reads(rows: list[tuple[dict[str, str], float]], warnings: list[str]) -> None:
    document = answer(rows, warnings=warnings)
    expected, reader = read_vector(document), VectorText()
    for _ in range(2):  # decoded, then known
        found = reader.read(orjson.dumps(document))
        if found is None:  # left to JSON's reader
            assert not rows or b'"]}]' in orjson.dumps(warnings)
            return
        assert list(found.labels) == list(expected.labels)
        assert found.labels[0] == expected.labels[0]
        np.testing.assert_array_equal(found.values, expected.values)
        assert (found.time_ms, found.warnings) == (expected.time_ms, expected.warnings)


def test_a_label_set_is_decoded_once_and_stays_the_same_object() -> None:
    reader = VectorText()
    first = reader.read(orjson.dumps(answer([({"uuid": "a"}, 1.0), ({"uuid": "b"}, 2.0)])))
    second = reader.read(orjson.dumps(answer([({"uuid": "b"}, 3.0), ({"uuid": "c"}, 4.0)])))
    assert first is not None
    assert second is not None
    assert isinstance(first.labels, SharedLabels)
    assert isinstance(second.labels, SharedLabels)
    assert second.labels.dicts[0] is first.labels.dicts[1]
    assert reader.labels.decoded == 3
    assert LabelDicts().of(second.labels)[0] is first.labels.dicts[1]


def test_label_sets_of_no_recent_answer_are_forgotten() -> None:
    reader = VectorText()
    for number in range(10 * ANSWERS_PER_GENERATION):
        assert reader.read(orjson.dumps(answer([({"pid": str(number)}, 1.0), ({"pid": "stays"}, 1.0)])))
    assert len(reader.labels) < 3 * ANSWERS_PER_GENERATION
    assert reader.labels.decoded == 10 * ANSWERS_PER_GENERATION + 1


GOOD = orjson.dumps(answer([({"uuid": "a"}, 1.0), ({"uuid": "b"}, 2.0)]))


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps(answer([({"uuid": "a"}, 1.0)]), option=orjson.OPT_INDENT_2),
        GOOD.replace(b'"success"', b'"error"'),
        GOOD.replace(b'"value"', b'"histogram"'),
        GOOD.replace(b'"1.0"', b'"one"'),
        GOOD.replace(b'"a"', b"1"),
        GOOD.replace(b'"a"', b'"a'),
        GOOD.replace(b"1794854833.135", b"1", 1),
        GOOD[:-1],
        GOOD.replace(b'{"uuid":"b"}', b'["uuid"]'),
        orjson.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}),
        b"",
        b"not JSON",
    ],
)
def test_other_texts_are_left_to_jsons_reader(body: bytes) -> None:
    reader = VectorText()
    assert reader.read(GOOD) is not None
    assert reader.read(body) is None


def test_errors_that_are_about_the_query_are_the_same() -> None:
    with pytest.raises(EngineResultTooLarge):
        VectorText().read(GOOD, max_series=1)
    with pytest.raises(EngineBadQuery):
        VectorText().read(GOOD.replace(b'"vector"', b'"matrix"'))
