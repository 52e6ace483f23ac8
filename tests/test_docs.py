"""What is generated is up to date, what is written mentions what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.cli import COMMANDS
from gpuscope.metrics.families import family_names
from tools.make_docs import PAGES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_tables_say(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == "\n".join(PAGES[name]()) + "\n", "run `make docs`"


@pytest.mark.parametrize("name", family_names())
def test_every_family_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs/metrics.md").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme_or_its_pages(command: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"gpuscope {command}" in page.read_text() for page in pages)


def test_every_dependency_has_its_reason_written_down() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    written = "\n".join(page.read_text() for page in (ROOT / "docs/decisions").glob("*.md"))
    for requirement in project["dependencies"]:
        name = requirement.split(">")[0].split("=")[0].strip()
        assert f"`{name}`" in written, name


def test_every_decision_is_numbered_once() -> None:
    numbers = [page.name.split("-")[0] for page in (ROOT / "docs/decisions").glob("*.md")]
    assert len(numbers) == len(set(numbers))
