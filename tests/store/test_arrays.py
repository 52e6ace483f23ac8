from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.store.tick import distinct


@given(st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)))
def test_distinct_sorts_and_removes_duplicates(numbers: list[int]) -> None:
    found = distinct(np.array(numbers, np.int64))
    assert found.tolist() == sorted(set(numbers))
    assert found.dtype == np.int64


def test_numpy_ma_is_not_imported() -> None:
    look = (
        "import sys, numpy; from gpuscope.history.store.tick import distinct;"
        "distinct(numpy.arange(3)); print('numpy.ma' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
