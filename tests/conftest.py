"""What holds for all tests: `slow` ones run only when SLOW=1, and no test has a wall-clock limit."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("gpuscope", deadline=None)
settings.load_profile("gpuscope")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SLOW") == "1":
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with SLOW=1"))
