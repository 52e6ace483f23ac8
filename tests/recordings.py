"""Recordings that others made and that are not in this repository: they only add to what our own show.

`GPUSCOPE_RECORDINGS` names the folder that has them (`captures/`, `seeds/`, `facts/`, `slurm-lab/`). Without it
the tests that read them are skipped, and each of them has a neighbour with a recording in `tests/captures`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SETTING = "GPUSCOPE_RECORDINGS"


def recordings(pattern: str) -> list[Path]:
    """The files that match, for the parameters of a test; none without the setting."""
    folder = os.environ.get(SETTING)
    return sorted(Path(folder).expanduser().glob(pattern)) if folder else []


def recording(pattern: str) -> Path:
    """The first file or folder that matches, or a skip that names the setting."""
    found = recordings(pattern)
    if not found:
        pytest.skip(f"no {pattern} in the folder that {SETTING} names")
    return found[0]
