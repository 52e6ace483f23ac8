"""The binary operators on arrays. A comparison gives 1 or 0; the caller decides whether it filters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope.history.promql.frame import Floats

Operator = Callable[[Floats, Floats], Floats]


def _comparison(compare: np.ufunc) -> Operator:
    def operator(left: Floats, right: Floats) -> Floats:
        outcome: Floats = compare(left, right).astype(np.float64)
        return outcome

    return operator


OPERATORS: dict[str, Operator] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
    "==": _comparison(np.equal),
    "!=": _comparison(np.not_equal),
    "<": _comparison(np.less),
    "<=": _comparison(np.less_equal),
    ">": _comparison(np.greater),
    ">=": _comparison(np.greater_equal),
}
