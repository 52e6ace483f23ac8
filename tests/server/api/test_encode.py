from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.promql.result import Matrix, RangeVector, Scalar, Text, Vector
from gpuscope.serve.api.encode import (
    encode_pairs,
    encode_result,
    failure,
    number_text,
    success,
    time_text,
    values_text,
)

A = (("__name__", "a"), ("x", 'q"\n'))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (1.5, "1.5"), (1e20, "100000000000000000000"), (1e21, "1e+21"),
        (1e-6, "0.000001"), (1e-7, "1e-07"), (1.25e-9, "1.25e-09"), (123456789.125, "123456789.125"),
        (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (5e-324, "5e-324"), (0.00001, "0.00001"), (1.2345e20, "123450000000000000000"),
    ],
)  # fmt: skip
def test_numbers_are_printed_as_prometheus_prints_them(value: float, text: str) -> None:
    assert number_text(value) == text


@given(st.lists(st.floats() | st.integers(-(10**22), 10**22).map(float), max_size=20))
def test_the_fast_and_the_careful_way_agree(values: list[float]) -> None:
    assert [text.decode() for text in values_text(np.array(values, dtype=np.float64))] == [
        number_text(v) for v in values
    ]


def test_a_matrix_with_a_gap() -> None:
    matrix = Matrix(
        np.array([1000, 1500, 2000]), [A], np.array([[1.0, 2.5, 0.0]]), np.array([[True, False, True]])
    )
    assert json.loads(encode_result(matrix)) == {
        "resultType": "matrix",
        "result": [{"metric": dict(A), "values": [[1, "1"], [2, "0"]]}],
    }


@given(
    st.lists(st.integers(-(10**13), 3 * 10**13) | st.integers(999_999_999_000, 1_000_000_002_000), max_size=20)
)
def test_times_have_milliseconds_only_where_they_need_them(times: list[int]) -> None:
    times = sorted({time // 4 * 4 for time in times} | {time // 1000 * 1000 for time in times})
    samples = RangeVector([A], [np.array(times, dtype=np.int64)], [np.zeros(len(times))])
    points = encode_result(samples).partition(b'"values":[')[2].removesuffix(b"]}]}")
    assert points == b",".join(b'[%b,"0"]' % time_text(time) for time in times)


def test_series_with_times_in_common_and_of_their_own() -> None:
    shared, own = np.array([10**12, 10**12 + 15_001]), np.array([10**12 + 7])
    samples = RangeVector(
        [A, A, A], [shared, own, shared], [np.array([1, 2.5]), np.array([3.0]), np.array([4, 5.0])]
    )
    assert [one["values"] for one in json.loads(encode_result(samples))["result"]] == [
        [[10**9, "1"], [10**9 + 15.001, "2.5"]],
        [[10**9 + 0.007, "3"]],
        [[10**9, "4"], [10**9 + 15.001, "5"]],
    ]


def test_the_other_kinds() -> None:
    vector = Vector(1500, [A], np.array([math.nan]))
    assert json.loads(encode_result(vector))["result"] == [{"metric": dict(A), "value": [1.5, "NaN"]}]
    assert json.loads(encode_result(Vector(0, [], np.array([]))))["result"] == []
    assert json.loads(encode_result(Scalar(1000, 2.0))) == {"resultType": "scalar", "result": [1, "2"]}
    assert json.loads(encode_result(Text(1000, "é"))) == {"resultType": "string", "result": [1, "é"]}
    samples = RangeVector([A], [np.array([7])], [np.array([3.0])])
    assert json.loads(encode_result(samples))["result"] == [{"metric": dict(A), "values": [[0.007, "3"]]}]


def test_envelopes() -> None:
    assert json.loads(success(b"[]", ["w"], ["i"])) == {
        "status": "success", "data": [], "warnings": ["w"], "infos": ["i"],
    }  # fmt: skip
    assert json.loads(success(b"[]")) == {"status": "success", "data": []}
    assert json.loads(failure("bad_data", "no")) == {"status": "error", "errorType": "bad_data", "error": "no"}


@given(st.data())
def test_any_matrix_can_be_read_back(data: st.DataObject) -> None:
    start, step = data.draw(st.integers(-(10**12), 10**13)), data.draw(st.sampled_from([1, 250, 1000, 60_000]))
    rows, count = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 6))
    values = np.array(data.draw(st.lists(st.floats(), min_size=rows * count, max_size=rows * count)))
    present = np.array(data.draw(st.lists(st.booleans(), min_size=rows * count, max_size=rows * count)))
    times = start + step * np.arange(count)
    values, present = values.reshape(rows, count).astype(float), present.reshape(rows, count).astype(bool)
    told = json.loads(encode_result(Matrix(times, [A] * rows, values, present)))["result"]
    assert [[(round(1000 * t), v) for t, v in one["values"]] for one in told] == [
        [(t, number_text(v)) for t, v in zip(times[p].tolist(), row[p].tolist(), strict=True)]
        for row, p in zip(values, present, strict=True)
    ]


TEXTS = st.text(st.sampled_from('a,"\\:]é\n'), max_size=4)


@given(st.lists(st.tuples(TEXTS, TEXTS)))
def test_label_pairs_are_json_whatever_they_contain(pairs: list[tuple[str, str]]) -> None:
    """Values are written together and cut at the quotes between them."""
    assert [json.loads(b"{%b}" % text) for text in encode_pairs(pairs)] == [dict([pair]) for pair in pairs]
