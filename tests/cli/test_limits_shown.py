"""`/metrics` shows the limits in force, including a default computed at start."""

from __future__ import annotations

import pytest

from tests.hostile.victim import running

DEFAULT = ("gpuscope_limit", '{limit="max_series"}')


@pytest.mark.parametrize(
    "command", [["server"], ["up", "--demo", "--demo-nodes", "1", "--demo-gpus", "1"]], ids=["server", "up"]
)
def test_default_max_series_equals_the_stores(command: list[str]) -> None:
    with running(command) as victim:
        assert victim.metric(*DEFAULT) >= 1000, "from the memory of this machine"
        assert victim.metric(*DEFAULT) == victim.metric("gpuscope_store_max_series")
