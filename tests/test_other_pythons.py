"""Every supported Python: which versions CI tests, and with SLOW=1 the whole suite on Python 3.13 and 3.14.

They are Debian's, in root file systems of their own (tools/python-root).
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.labs.docker_lab import IMAGE_PYTHON, IMAGE_SUITE

ROOT = Path(__file__).parent.parent
PYTHON_ROOT = ROOT / "tools/python-root"
UNAVAILABLE = 75
"""Exit code of tools/python-root where it cannot make a root file system."""


def test_ci_tests_the_python_of_the_image() -> None:
    base = re.search(
        r"^ARG BASE=python:([\d.]+)-slim-(\w+)$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.M
    )
    assert base is not None
    assert base.groups() == (IMAGE_PYTHON, IMAGE_SUITE)
    assert f"tools/python-root {IMAGE_PYTHON} make test-fast" in (ROOT / ".ci/run").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.13", "3.14"])
def test_the_whole_suite(version: str) -> None:
    made = subprocess.run([PYTHON_ROOT, version, "make", "setup"], capture_output=True, text=True)
    if made.returncode == UNAVAILABLE:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    pytest_command = [".venv/bin/python", "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile"]
    done = subprocess.run(
        [PYTHON_ROOT, version, "env", "-u", "SLOW", *pytest_command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:]
