"""Windows over values in place give what windows over copied values give, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.history.promql import over_time, range_functions
from gpuscope.history.promql.frame import Bools, Floats
from gpuscope.history.promql.range_functions import Kernel
from gpuscope.history.promql.select import windows
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series_columns import SeriesColumns

KERNELS: dict[str, Kernel] = {
    "rate": lambda one: range_functions.extrapolated(one, counter=True, per_second=True),
    "increase": lambda one: range_functions.extrapolated(one, counter=True, per_second=False),
    "delta": lambda one: range_functions.extrapolated(one, counter=False, per_second=False),
    "irate": lambda one: range_functions.instant(one, per_second=True),
    "deriv": range_functions.derivative,
    "max_over_time": lambda one: over_time.evaluate(one, over_time.maximum),
}
SERIES, AXES, ROOM = 40, 10, 30


def random_columns(rng: np.random.Generator) -> SeriesColumns:
    """Counters that begin near zero and are reset now and then, four of each time axis, with unused values
    between them."""
    lengths = rng.integers(1, 25, AXES)
    axis_starts = np.concatenate(([0], np.cumsum(lengths)))
    times = np.concatenate([1000 * np.cumsum(rng.integers(5, 40, length)) for length in lengths])
    axis = np.repeat(np.arange(AXES), SERIES // AXES)
    values = rng.integers(-5, 5, SERIES * ROOM).astype(float)
    value_starts = np.arange(SERIES) * ROOM + rng.integers(0, 5, SERIES)
    for start, length in zip(value_starts, lengths[axis], strict=True):
        line = np.cumsum(rng.integers(0, 9, length)).astype(float)
        line[rng.integers(0, length) :] -= line[0] if rng.random() < 0.5 else 0
        values[start : start + length] = line
    labels = LabelColumns.of([(("series", str(number)),) for number in range(SERIES)])
    return SeriesColumns(labels, axis, times, axis_starts, values, value_starts)


def evaluate(columns: SeriesColumns, kernel: Kernel) -> tuple[Floats, Bools]:
    ends = np.arange(0, 600_000, 15_000)
    with np.errstate(all="ignore"):
        found = [kernel(part) for _, part in windows(columns, ends, 60_000)]
    present = np.concatenate([one for _, one in found])
    return np.where(present, np.concatenate([one for one, _ in found]), 0.0), present


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", range(5))
def test_in_place_as_copied(name: str, seed: int) -> None:
    columns = random_columns(np.random.default_rng(seed))
    values, present = evaluate(columns, KERNELS[name])
    copied = SeriesColumns.of(columns.series())
    expected, expected_present = evaluate(copied, KERNELS[name])
    assert present.any()
    assert (present == expected_present).all()
    assert (values.view(np.int64) == expected.view(np.int64)).all()


def test_values_are_not_copied() -> None:
    columns = random_columns(np.random.default_rng(1))
    found = [part for _, part in windows(columns, np.array((300_000,)), 60_000)]
    assert all(np.shares_memory(part.values, columns.values) for part in found)
