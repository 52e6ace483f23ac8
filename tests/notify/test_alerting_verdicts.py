"""Which files are accepted: `load_alerting` and amtool must agree, but for the differences named in a table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.alerting_config import load_alerting
from tests.engines import engine
from tests.notify.alerting_files import CRASHES, DIFFERENCES, FRAGMENTS, all_fragments, whole_file


def refusal(path: Path) -> str:
    """The sentence with which a file is refused; empty if it is accepted."""
    try:
        load_alerting(path)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("place", FRAGMENTS)
def test_a_refusal_is_one_sentence_that_names_the_file(place: str, tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    for fragment in FRAGMENTS[place]:
        path.write_text(whole_file(place, fragment))
        sentence = refusal(path)
        assert not sentence or (sentence.startswith(f"{path}: ") and "\n" not in sentence), fragment


@pytest.mark.engine("amtool")
def test_a_file_is_accepted_if_amtool_accepts_it(tmp_path: Path) -> None:
    files = {}
    for number, case in enumerate(one for one in all_fragments() if one not in CRASHES):
        files[case] = tmp_path / f"{number}.yml"
        files[case].write_text(whole_file(*case))
    run = subprocess.run(
        [engine("amtool"), "check-config", *files.values()], capture_output=True, text=True, check=False
    )
    _, *sections = re.split("^Checking ", run.stdout, flags=re.MULTILINE)
    assert [section.split("'")[1] for section in sections] == [str(path) for path in files.values()]
    accepted = {case for case, section in zip(files, sections, strict=True) if "  FAILED" not in section}
    differing = {case for case, path in files.items() if (case in accepted) != (not refusal(path))}
    assert differing == set(DIFFERENCES)


@pytest.mark.parametrize(("place", "fragment"), CRASHES)
def test_what_crashes_amtool_is_refused(place: str, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(whole_file(place, fragment))
    assert refusal(path)
