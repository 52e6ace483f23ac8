"""The scrape configuration under fuzzing: see `harness.py`."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import fuzz_briefly, fuzz_long

TARGET = "tests.fuzz.target_scrape_config"


def test_some_texts() -> None:
    fuzz_briefly(TARGET)


@pytest.mark.slow
def test_a_million_texts() -> None:
    fuzz_long(TARGET)
