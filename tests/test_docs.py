"""What is generated is up to date, what is written mentions what there is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from gpuscope.agent.families import family_names
from gpuscope.cli import COMMANDS
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


METRIC = re.compile(r"\bgpuscope_[a-z0-9_]*[a-z0-9]\b(?![*_{]?\*)")
HISTOGRAM_SUFFIX = re.compile(r"_(bucket|sum|count)$")
WRITTEN_PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
# The example of `Add a metric`, which a test adds in a copy of the tree.
METRICS_OF_EXAMPLES = {"gpuscope_gpu_adaptive_clocks_enabled", "gpuscope_gpu_aerr_errors_total"}


@cache
def known_metrics() -> frozenset[str]:
    """Names in the generated page, and those in the source of metrics without a table."""
    texts = [(ROOT / "docs/metrics.md").read_text(), *(one.read_text() for one in (ROOT / "src").rglob("*.py"))]
    return frozenset(METRIC.findall("\n".join(texts))) | METRICS_OF_EXAMPLES


def unknown_metrics(text: str) -> list[str]:
    names = {HISTOGRAM_SUFFIX.sub("", name) for name in METRIC.findall(text)}
    return sorted(
        name
        for name in names
        if name not in known_metrics() and not any(known.startswith(f"{name}_") for known in known_metrics())
    )


@pytest.mark.parametrize("page", WRITTEN_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_metric_of_a_page_exists(page: Path) -> None:
    if page.name != "CHANGELOG.md" and "decisions" not in page.parts:  # these tell of the past
        assert unknown_metrics(page.read_text()) == []


def test_a_metric_that_does_not_exist_is_found() -> None:
    assert unknown_metrics("`gpuscope_gpu_utilisation` and gpuscope_gpu_info") == ["gpuscope_gpu_utilisation"]
