"""The *Add …* sections of docs/architecture.md work as written.

Each section's code blocks are put into a copy of the tree, where the page says; its console blocks are run
there, and must print the lines they show. `…` in a shown line stands for any text. A command must succeed,
unless `$ echo $?` after it shows another exit code.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture_page import PAGE, ROOT, section

SECTIONS = ("source", "vendor", "metric", "family", "stand-in", "check", "channel", "panel", "doctor's check")
COPIED = ("src/gpuscope", "tests", "tests/golden/api", "tools", "docs", "web/src", "web/tests")
COPIED_FILES = ("pyproject.toml", "web/package.json", "web/tsconfig.json", "web/vite.config.ts")
NOT_COPIED = ("__pycache__", "page", "img", "golden", "node_modules", ".*")

SHOW_EXIT_CODE = "echo $?"
GOLDENS = ("tests/metrics/test_model_goldens.py",)
"""Those that a new metric changes; all of them take half a minute."""
COMMANDS = {
    "gpuscope": [sys.executable, "-m", "gpuscope"],
    "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
    "make docs": [sys.executable, "-m", "tools.make_docs"],
    "make golden": [
        "env",
        "GOLDEN_UPDATE=1",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *GOLDENS,
    ],
}


@dataclass(frozen=True)
class Step:
    """`file` is created with `text`, or gets it after or instead of a line; without a file, `text` is run."""

    file: str
    place: str
    line: str
    text: str


def steps(text: str) -> Iterator[Step]:
    pattern = re.compile(
        r"^(?:Create `(?P<new>[^`]+)`"
        r"|In `(?P<old>[^`]+)`, (?P<place>after|instead of) the line `(?P<line>[^\n]+)`|Run):\n\n"
        r"```\w*\n(?P<text>.*?)^```$",
        re.MULTILINE | re.DOTALL,
    )
    for found in pattern.finditer(text):
        file = found["new"] or found["old"] or ""
        yield Step(file, found["place"] or "", found["line"] or "", found["text"])


def test_every_section_is_followed() -> None:
    titles = re.findall(r"^## Add an? (.+)$", PAGE, re.MULTILINE)
    assert set(titles) - {"limit"} == set(SECTIONS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for file in COPIED_FILES:
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_works_as_written(name: str, tree: Path) -> None:
    if name == "panel":
        if not (ROOT / "web/node_modules").is_dir() or not shutil.which("npm"):
            pytest.skip("Node is not installed, or web/node_modules is missing")
        (tree / "web/node_modules").symlink_to(ROOT / "web/node_modules")
    todo = list(steps(section(f"Add a {name}")))
    assert [step for step in todo if not step.file], "the section runs nothing"
    for step in todo:
        if step.file:
            apply(step, tree)
        else:
            run(step.text, tree)


def apply(step: Step, tree: Path) -> None:
    path = tree / step.file
    if not step.place:
        assert not path.exists(), f"{step.file} exists already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, "utf-8")
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.strip() == step.line]
    assert len(places) == 1, f"{step.file} has the line {step.line!r} {len(places)} times"
    lines[places[0]] = step.text if step.place == "instead of" else lines[places[0]] + step.text
    path.write_text("".join(lines), "utf-8")


def run(block: str, tree: Path) -> None:
    commands = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert commands
    code, following = 0, [*(command for command, _ in commands[1:]), ""]
    for (command, shown), after in zip(commands, following, strict=True):
        if command == SHOW_EXIT_CODE:
            printed = f"{code}\n"
        else:
            code, printed = run_command(command, tree)
            may_fail = after == SHOW_EXIT_CODE or "doctor" in command  # whose findings are this machine's
            assert may_fail or code == 0, f"$ {command}\n{printed}"
        expected = [".*".join(map(re.escape, line.split("…"))) for line in shown.splitlines()]
        pattern = r"^(?:.*\n)*?".join(f"{line}$\n?" for line in expected)
        assert re.search(rf"^{pattern}" if expected else "", printed, re.MULTILINE), f"$ {command}\n{printed}"


def run_command(command: str, tree: Path) -> tuple[int, str]:
    """Its exit code, and what it printed."""
    start = next((name for name in COMMANDS if command.startswith(name)), "")
    words = [*COMMANDS.get(start, []), *shlex.split(command.removeprefix(start))]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
    }
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    folder = tree / "web" if command.startswith("npm") else tree
    done = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")
