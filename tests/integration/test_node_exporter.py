"""A real node_exporter as an unprivileged user reads the files that `gpuscope textfile` writes with umask
077."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import engine, running
from tests.integration.agent_process import GPUSCOPE, to_series
from tests.ports import free_port

NO_OWNER = "65534"
FAMILIES = ("native", "dcgm", "dcgm_legacy", "nvidia_smi", "sessions")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="textfile-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def as_nobody() -> list[str]:
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("node_exporter as another user: needs root and setpriv")
    return [setpriv, f"--reuid={NO_OWNER}", f"--regid={NO_OWNER}", "--clear-groups"]


def write(folder: Path, family: str) -> None:
    target = folder / f"{family}.prom"
    subprocess.run(
        [*GPUSCOPE, "textfile", "--source", "demo", "--families", family, "--output", target, "--once"],
        umask=0o077,
        check=True,
        capture_output=True,
    )


@pytest.mark.engine("node_exporter")
def test_an_unprivileged_node_exporter_reads_every_family(open_folder: Path) -> None:
    command = as_nobody()
    program = shutil.copy(engine("node_exporter"), open_folder)  # its own place may be closed to others
    collected = open_folder / "collected"
    collected.mkdir(mode=0o755)
    for family in FAMILIES:
        write(collected, family)
    address = f"127.0.0.1:{free_port()}"
    flags = [
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={collected}",
    ]
    url = f"http://{address}/metrics"
    with (
        running([*command, program, *flags, f"--web.listen-address={address}"], url),
        urllib.request.urlopen(url) as answer,
    ):
        text = answer.read().decode()
    series = to_series(text)
    assert series["node_textfile_scrape_error"] == 0
    times = [name for name in series if name.startswith("node_textfile_mtime_seconds{")]
    assert len(times) == len(FAMILIES)
    for family in FAMILIES:
        wanted = to_series((collected / f"{family}.prom").read_text())
        names = {name.partition("{")[0] for name in wanted}
        assert names <= {name.partition("{")[0] for name in series}
