"""Runs every file in testdata/: tests of the stable language in the format of Prometheus' own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.history.promql.parse import FUNCTIONS
from tests.promql.promqltest import parse_file, run

FILES = sorted((Path(__file__).parent / "testdata").glob("*.test"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(path: Path) -> None:
    run(parse_file(path))


def test_every_function_is_tested() -> None:
    text = "\n".join(path.read_text() for path in FILES)
    assert not sorted(name for name in FUNCTIONS if f"{name}(" not in text)


def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    lines = {
        "eval instant at 0 v\n  v 2": "v{}: \\[1.0\\], not \\[2.0\\]",
        "eval instant at 0 v\n  w 1": "series are",
        "eval instant at 0 v": "series are",
        "eval instant at 0 1\n  2": "scalar 1.0",
        "eval instant at 0 v\n  expect fail": "should fail",
        "eval instant at 0 v +": "unexpected error",
        "eval instant at 0 v +\n  expect fail msg: something else": "other error",
        "eval instant at 0 v\n  expect warn\n  v 1": "expected warn",
        "eval range from 0 to 1m step 1m v\n  v 1 _": "v{}: \\[1.0, 1.0\\]",
        'eval instant at 0 sort_desc({n=~\'.\'})\n  expect ordered\n  o{n="1"} 1\n  o{n="2"} 2': "order is",
    }
    for text, complaint in lines.items():
        path = tmp_path / "false.test"
        path.write_text(f'load 1m\n  v 1\n  o{{n="1"}} 1\n  o{{n="2"}} 2\n\n{text}\n')
        with pytest.raises(AssertionError, match=complaint):
            run(parse_file(path))
