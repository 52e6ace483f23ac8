"""The package as users get it: sdist and wheel, installed into an empty environment without Node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it where there is no Node."""
    folder = tmp_path_factory.mktemp("packages")
    probe = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "-d",
        folder / "probe",
        "setuptools>=77",
    ]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("PyPI: not reachable from here")
    if not (ROOT / "src/gpuscope/server/page/index.html").is_file():
        pytest.skip("Node: the page was not built on this machine")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT)
    sdist = next(folder.glob("*.tar.gz"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, sdist]
    run(*pip, PATH=without_node(folder))
    return folder


def without_node(folder: Path) -> str:
    """A PATH with nothing but what a build needs."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "env", "uname"):
        if not (tools / name).exists():
            (tools / name).symlink_to(f"/usr/bin/{name}")
    return str(tools)


def test_sdist_and_wheel_are_as_a_registry_wants_them(packages: Path, tmp_path: Path) -> None:
    files = [*packages.glob("*.tar.gz"), *packages.glob("*.whl")]
    assert len(files) == 2
    # In an environment of its own: twine needs twenty packages that nothing else here uses.
    run(sys.executable, "-m", "venv", tmp_path)
    run(tmp_path / "bin/pip", "install", "--quiet", "twine==6.2.0")
    run(tmp_path / "bin/twine", "check", "--strict", *files)


@contextmanager
def running(command: Path, *arguments: str, path: str) -> Iterator[str]:
    """The URL of a server that was started on a port of its own choice."""
    environment = {"PATH": path, "HOME": str(command.parent)}
    with subprocess.Popen([command, *arguments], env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    return
            raise AssertionError("it ended without saying where it is")
        finally:
            process.terminate()


def test_a_wheel_in_an_empty_environment_serves_the_page(packages: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    wheel = next(packages.glob("*.whl"))
    run(tmp_path / "venv/bin/pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    command = tmp_path / "venv/bin/gpuscope"
    arguments = (
        "up",
        "--demo",
        "--demo-nodes",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "data"),
    )
    with running(command, *arguments, path=without_node(tmp_path)) as url:
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        script = re.search(r'src="\./(assets/[^"]+\.js)"', page)
        assert script, page
        with urllib.request.urlopen(f"{url}/{script[1]}", timeout=60) as answer:
            assert answer.headers["content-type"].startswith("text/javascript")
            assert len(answer.read()) > 10_000
    licences = list((tmp_path / "venv").rglob("gpuscope-*.dist-info/licenses/*"))
    assert {path.name for path in licences} == {"LICENSE", "NOTICE"}
