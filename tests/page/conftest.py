"""What the page's tests need of the machine, and how they are run; what is missing is skipped by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WEB = HERE.parent.parent / "web"
COMMAND = Path(sys.executable).parent / "gpuscope"


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine")
    return found


@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("no Node on this machine")
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        pytest.skip("the page's test tools are not installed: npm ci in web/")
    return found


@pytest.fixture(scope="session")
def run_in_chromium(node: str, chromium: str) -> Callable[..., None]:
    """Runs a file of tests with Node's own runner."""

    def run(name: str, **environment: str) -> None:
        done = subprocess.run(
            [node, "--test", "--test-reporter=spec", str(HERE / name)],
            env={**os.environ, "GPUSCOPE_COMMAND": str(COMMAND), "GPUSCOPE_CHROMIUM": chromium, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]

    return run
