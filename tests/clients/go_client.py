"""Clients written in Go, built from the modules their own projects publish: how one is built and asked.

`client("grafana")` gives the program built from the folder of that name, here or in another place, or skips the
test naming what is missing: Go, or the modules. A program is built once, into gpuscope's cache folder, under a
name with a hash of its sources. It reads JSON from standard input and writes JSON to standard output.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# Neither optimised nor with symbols for a debugger: a cold build takes half the time.
BUILD_FLAGS = ["-trimpath", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"]
NOT_TO_BE_HAD = ('Get "', "reading http", "module lookup disabled", "requires go >=", "toolchain not available")


def client(name: str, place: Path | None = None) -> Path:
    """The program, or a skip that says which client is missing and why."""
    found = find_client(name, place)
    if isinstance(found, str):
        pytest.skip(f"{name}: {found}")
    return found


@functools.cache
def find_client(name: str, place: Path | None = None) -> Path | str:
    """The path, or the reason there is none."""
    source = (place or HERE) / name
    go = shutil.which("go")
    if go is None:
        return "Go is not installed"
    program = _cache() / f"{name}-{_fingerprint(source, go)}"
    if program.exists():
        return program
    # Fetched apart from building: what cannot be fetched is a skip, what does not build is a failure.
    fetched = _run([go, "list", "-deps", "."], source)
    if fetched.returncode:
        assert any(sign in fetched.stderr for sign in NOT_TO_BE_HAD), fetched.stderr
        return f"its modules cannot be had: {fetched.stderr.strip().splitlines()[-1]}"
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        built = _run([go, "build", *BUILD_FLAGS, "-o", f"{folder}/client", "."], source)
        assert not built.returncode, built.stderr
        Path(folder, "client").replace(program)  # at once: another run may be looking
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuscope" / "clients"


def _fingerprint(folder: Path, go: str) -> str:
    version = _run([go, "env", "GOVERSION"], folder).stdout
    sources = [path for path in sorted(folder.iterdir()) if path.suffix in (".go", ".mod", ".sum")]
    parts = [version, *BUILD_FLAGS, *(path.name + "\n" + path.read_text() for path in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def ask(program: Path, scene: dict[str, Any]) -> dict[str, Any]:
    """What the client says; every number as its text, so that `differences` allows for the last bits."""
    done = subprocess.run([program], input=json.dumps(scene), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout, parse_float=str, parse_int=str)
    return said
