"""The page in a real Chromium over a real demo server.

The tests themselves are JavaScript (*.test.mjs) and are run by Node's own runner; this file starts one server
for them and skips by name what the machine lacks.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WEB = HERE.parent.parent / "web"
COMMAND = Path(sys.executable).parent / "gpuscope"
READY_SECONDS = 300.0


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine")
    return found


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("no Node on this machine")
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        pytest.skip("the page's test tools are not installed: npm ci in web/")
    return found


@pytest.fixture(scope="module")
def server(node: str, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    data = tmp_path_factory.mktemp("page")
    arguments = [
        str(COMMAND),
        "up",
        "--demo",
        "--scenario",
        "one-works",
        "--data",
        str(data),
        "--listen",
        address,
    ]
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_ready(f"http://{address}/", process)
            yield f"http://{address}/"
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}-/ready", timeout=5):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            built = b"<script" in answer.read()
    except urllib.error.HTTPError:
        built = False
    if not built:
        pytest.skip("the page is not built: npm run build in web/")


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.test.mjs")))
def test_page(name: str, server: str, node: str, chromium: str) -> None:
    environment = {
        **os.environ,
        "GPUSCOPE_URL": server,
        "GPUSCOPE_CHROMIUM": chromium,
        "GPUSCOPE_COMMAND": str(COMMAND),
    }
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", str(HERE / name)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
