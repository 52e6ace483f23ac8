"""gpuscope and its dependencies as wheels for a Debian's Python, for labs without an index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def wheels_of_gpuscope(folder: Path, python: str = "3.11") -> Path:
    """Debian 12 has Python 3.11. Skips the test where PyPI cannot be reached."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options: list[str | Path] = [
        "--only-binary=:all:",
        "--python-version",
        python,
        "-c",
        ROOT / "constraints.txt",
        "-d",
        folder,
    ]
    built = subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"PyPI: {built.stderr.strip().splitlines()[-1:]}")
    wheel = next(folder.glob("gpuscope-*.whl"))
    done = subprocess.run([*pip, "download", *options, wheel], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"PyPI: {done.stderr.strip().splitlines()[-1:]}")
    return folder
