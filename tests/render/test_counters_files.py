"""The written counters files are read back as the lists they came from, by our own parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.serve.render import write_files
from gpuscope.serve.render.exporter_files import counters_files
from gpuscope.vendors.nvidia.families.dcgm.counters_csv import each_once, load_counters
from gpuscope.vendors.nvidia.families.dcgm.table import OPT_IN_COUNTERS, SHIPPED_FILES


@pytest.mark.parametrize("name", SHIPPED_FILES)
def test_a_counters_file_reads_back_as_its_list(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, counters_files())
    assert load_counters(str(tmp_path / name)) == each_once(SHIPPED_FILES[name])


def test_every_optional_row_is_valid_without_its_comment_sign(tmp_path: Path) -> None:
    write_files(tmp_path, counters_files())
    path = tmp_path / "default-counters.csv"
    rows, optional = path.read_text().split("# Further fields")
    uncommented = "\n".join(line.removeprefix("# ") for line in optional.splitlines()[1:])
    path.write_text(rows + uncommented + "\n")
    names = {counter.name for counter in load_counters(str(path))}
    assert {counter.name for counter in OPT_IN_COUNTERS} <= names
