"""Every file in testdata/ holds: the stable language, in the format of Prometheus' own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promql.promqltest import parse_file, run

FILES = sorted((Path(__file__).parent / "testdata").glob("*.test"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(path: Path) -> None:
    run(parse_file(path))
