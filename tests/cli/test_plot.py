from __future__ import annotations

import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.cli.plot import HEIGHT, MARGIN, render_plot, short_number


def dots(lines: list[str]) -> list[str]:
    return [line[MARGIN:] for line in lines[:HEIGHT]]


def test_neighbours_are_connected_and_gaps_stay_open() -> None:
    steady = [(60.0 * minute, 5.0) for minute in range(40)]
    whole = dots(render_plot(steady, 60))
    assert [line for line in whole if line] == [whole[3]]
    assert len(whole[3]) == 60 - MARGIN - 1
    assert "\u2800" not in whole[3]
    broken = dots(render_plot(steady[:10] + steady[30:], 60))
    assert broken[3].count("\u2800") == pytest.approx(23, abs=1)  # half of the line


def test_axis_labels() -> None:
    lines = render_plot([(0.0, 2500.0), (60.0, 12_500.0)], 60)
    assert lines[0].startswith("      12.5k ┤")
    assert lines[HEIGHT - 1].startswith("       2500 ┤")
    assert lines[-1].split()[0].endswith(":00:00")
    assert lines[-1].split()[-1].endswith(":01:00")
    assert len(lines[-1]) == 59
    assert "-" in render_plot([(0.0, 1.0), (90_000.0, 2.0)], 60)[-1], "more than a day has dates"


def test_nothing_and_one_point() -> None:
    assert render_plot([]) == ["  no values"]
    assert sum(map(bool, dots(render_plot([(7.0, 3.0)], 40)))) == 1


@example([(0, 0.0), (1, 5e-324)], 1)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.floats(allow_nan=False, allow_infinity=False)),
        max_size=30,
        unique_by=lambda point: point[0],
    ),
    st.integers(1, 200),
)
def test_any_points_fit_any_terminal(points: list[tuple[int, float]], width: int) -> None:
    lines = render_plot(sorted((float(at), value) for at, value in points), width)
    if points:
        assert len(lines) == HEIGHT + 1
        assert max(len(line) for line in dots(lines)) <= max(10, width - MARGIN - 1)
        assert any(line.strip("\u2800") for line in dots(lines))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (9999, "9999"), (10_000, "10k"), (12_345, "12.35k"), (80e9, "80G"), (-2.5e6, "-2500k"),
     (0.12345, "0.1235"), (1e-6, "1e-06"), (3e20, "3e+20"), (math.inf, "inf"), (math.nan, "nan"),
     (sys.float_info.max, "1.798e+308")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text
