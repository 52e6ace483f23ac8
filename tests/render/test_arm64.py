"""The program on arm64: every dependency has a wheel, and Debian's Python for arm64 runs it by emulation.

qemu's user emulation runs the interpreter with the root of the image's base; nothing is registered with this
machine's kernel, so programs that it would start itself cannot run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import __version__
from tests.labs.debian_programs import LabUnavailable, make_root, unpack
from tests.labs.wheels import ROOT, wheels_of_gpuscope

pytestmark = pytest.mark.slow
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64", "manylinux_2_34_aarch64")
DEBIAN_PYTHON = "3.11"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(wheels_of_gpuscope(tmp_path_factory.mktemp("wheels")).glob("gpuscope-*"))


def pip(command: str, version: str, *arguments: str | Path) -> None:
    """pip for arm64: none of the packages may need a compiler."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    words = [
        sys.executable, "-m", "pip", command, "--quiet", "--only-binary=:all:", "--python-version", version,
        *platforms, "-c", ROOT / "constraints.txt", *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "PIP_FIND_LINKS": ""}
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", [DEBIAN_PYTHON, "3.13"])
def test_every_dependency_has_a_wheel(tmp_path: Path, wheel: Path, version: str) -> None:
    pip("download", version, "-d", tmp_path, wheel)
    names = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in names if "x86_64" in name]
    assert any("aarch64" in name and name.startswith("numpy") for name in names)


def test_the_interpreter_of_arm64_runs_the_program(tmp_path: Path, wheel: Path) -> None:
    try:
        emulator = unpack(("qemu-user-static",), "bookworm") / "usr/bin/qemu-aarch64-static"
        root = make_root("gpuscope-arm64", "extract", ("python3", "libstdc++6"), "arm64")
    except LabUnavailable as missing:
        pytest.skip(f"arm64: {missing}")
    pip("install", DEBIAN_PYTHON, "--no-compile", "--target", tmp_path, wheel)

    def gpuscope(*arguments: str) -> str:
        python = [emulator, "-L", root, root / f"usr/bin/python{DEBIAN_PYTHON}"]
        command = [*python, "-m", "gpuscope", *arguments]
        done = subprocess.run(
            [str(word) for word in command], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert __version__ in gpuscope("--version")
    snapshot = json.loads(gpuscope("snapshot", "--source", "demo", "--json"))
    assert len(snapshot["devices"]) >= 1
    assert "gpuscope_gpu_info{" in gpuscope("agent", "--once", "--source", "demo")
