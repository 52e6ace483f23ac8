"""The harness finds a known defect."""

from __future__ import annotations

import pytest

from tests.fuzz import harness

BROKEN = "tests.fuzz.target_broken"


def test_random_cases_find_a_defect() -> None:
    with pytest.raises(ZeroDivisionError):
        harness.fuzz_briefly(BROKEN)


def test_coverage_guided_cases_find_a_defect_and_report_its_bytes() -> None:
    pytest.importorskip("atheris", reason="atheris is not installed here")
    with pytest.raises(AssertionError, match=r"(?s)b'bug.*ZeroDivisionError"):
        harness.coverage_guided(BROKEN, 100_000)
