"""Goldens: whole outputs, kept in tests/golden, compared byte for byte and read as a diff.

GOLDEN_UPDATE=1 pytest tests/metrics        # writes them anew; then look at `git diff tests/golden`
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def check_golden(path: Path, actual: bytes) -> None:
    """`path` under tests/golden (or absolute) holds exactly `actual`."""
    golden = GOLDEN / path
    if os.environ.get("GOLDEN_UPDATE"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_bytes(actual)
        return
    assert golden.exists(), f"{golden} is not there; GOLDEN_UPDATE=1 writes it"
    expected = golden.read_bytes()
    if expected != actual:
        diff = difflib.unified_diff(
            expected.decode("utf-8", "replace").splitlines(),
            actual.decode("utf-8", "replace").splitlines(),
            golden.name,
            "now",
            lineterm="",
            n=1,
        )
        raise AssertionError("\n".join(list(diff)[:60]) or "they differ in line endings only")
