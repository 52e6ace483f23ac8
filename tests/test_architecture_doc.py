"""The walks and the folders of docs/architecture.md are those of the tree: every function it names exists."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

from tests.architecture_page import ROOT, section

WALKS = 5
SHORT = ("From a rule that fires to a message in Slack",)


def walks() -> dict[str, list[tuple[str, str]]]:
    found = {}
    for title, text in re.findall(
        r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", section("Five walks"), re.MULTILINE | re.DOTALL
    ):
        found[title] = re.findall(r"^\d+\. `([^`:]+):([^`]+)`", text, re.MULTILINE)
    return found


def names_of(path: Path) -> set[str]:
    """The functions and methods of a Python file; what a TypeScript file declares at its top level."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"^(?:export )?(?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE))
    names = set()
    for node in ast.parse(text).body:
        names |= {node.name} if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else set()
        if isinstance(node, ast.ClassDef):
            functions = (one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
            names |= {f"{node.name}.{one.name}" for one in functions}
    return names


@pytest.mark.parametrize("title", walks())
def test_every_step_of_a_walk_exists(title: str) -> None:
    missing = []
    for file, function in walks()[title]:
        path = ROOT / file if file.startswith("web/") else ROOT / "src/gpuscope" / file
        if not path.is_file() or function not in names_of(path):
            missing.append(f"{file}:{function}")
    assert missing == []


@pytest.mark.parametrize("title", SHORT)
def test_a_short_walk_has_few_steps_and_never_goes_back(title: str) -> None:
    steps = walks()[title]
    assert len(steps) <= 15
    files = [file for file, _ in itertools.groupby(file for file, _ in steps)]
    assert len(files) == len(set(files)), "a file that was left comes again"


def test_the_walks_are_complete() -> None:
    numbered = len(re.findall(r"^\d+\. ", section("Five walks"), re.MULTILINE))
    assert len(walks()) == WALKS
    assert sum(map(len, walks().values())) == numbered, "a step is not written as `file:function`"


def test_the_folders_are_those_of_the_tree() -> None:
    listed = re.findall(r"^\| `(\w+)/` \|", section("The folders"), re.MULTILINE)
    there = {path.parent.name for path in (ROOT / "src/gpuscope").glob("*/__init__.py")}
    assert set(listed) == there
