"""Fixtures of several files of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.debian_programs import LabUnavailable
from tests.labs.go_programs import go_program


@pytest.fixture(scope="session")
def helm() -> Path:
    try:
        return go_program("helm")
    except LabUnavailable as missing:
        pytest.skip(f"helm: {missing}")
