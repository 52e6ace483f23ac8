"""The remote-write decoders under fuzzing: see `harness.py`."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import fuzz_briefly, fuzz_long

TARGET = "tests.fuzz.target_remote_write"


def test_some_requests() -> None:
    fuzz_briefly(TARGET)


@pytest.mark.slow
def test_a_million_requests() -> None:
    fuzz_long(TARGET)
