"""promtool on the DCGM families: nothing but the naming lints of the exporters they repeat."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engines import engine
from tests.goldens import GOLDEN

# The exporters' own names, frozen: GPU_UTIL-style labels, counters without _total, `pcie_replay_counter`.
KNOWN_LINTS = {
    'counter metrics should have "_total" suffix',
    "label names should be written in 'snake_case' not 'camelCase'",
    "metric name should not include type 'counter'",
}
FILES = sorted(path for folder in ("dcgm", "dcgm_legacy") for path in (GOLDEN / folder).glob("*.metrics"))


@pytest.mark.engine("promtool")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_promtool_finds_only_known_lints(path: Path) -> None:
    command: list[str | Path] = [engine("promtool"), "check", "metrics"]
    result = subprocess.run(command, input=path.read_text(), capture_output=True, text=True)
    lints = {line.partition(" ")[2] for line in (result.stdout + result.stderr).splitlines() if line}
    assert lints <= KNOWN_LINTS
