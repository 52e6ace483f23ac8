"""Whether a package is installed, without importing it: nvitop changes pynvml when it is imported."""

from __future__ import annotations

import importlib.util

import pytest


def require(package: str) -> None:
    """Skip the test if the package is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
