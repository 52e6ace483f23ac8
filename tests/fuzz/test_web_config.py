"""The web configuration under fuzzing: see `harness.py`."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import fuzz_briefly, fuzz_long

TARGET = "tests.fuzz.target_web_config"


def test_a_few() -> None:
    fuzz_briefly(TARGET)


@pytest.mark.slow
def test_a_million() -> None:
    fuzz_long(TARGET)
