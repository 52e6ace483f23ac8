"""The loop that rewrites a text file: a folder that is full or gone is logged once, and once when it ends."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.run_agent import CollectorThreads, build_collector, write_textfile
from gpuscope.model.exposition.text import TextfileWriter
from gpuscope.serve.exporter import Exporter

FAILING_WRITES = 5


class FullDisk(TextfileWriter):
    """Fails some times, then writes once and ends the loop."""

    def __init__(self, target: Path, stop: threading.Event) -> None:
        super().__init__(target)
        self.stop = stop
        self.writes = 0

    def write(self, exposition: bytes) -> None:
        self.writes += 1
        if self.writes <= FAILING_WRITES:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(exposition)
        self.stop.set()


def test_a_file_that_cannot_be_written_is_logged_once_and_again_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpuscope")
    settings = replace(Settings(), source="demo", interval=0.01)
    stop = threading.Event()
    writer = FullDisk(tmp_path / "gpu.prom", stop)
    running = CollectorThreads(build_collector(settings, ("sessions",)))
    write_textfile(running, Exporter([], openmetrics=False, title="t"), writer, every=0.001, stop=stop)
    said = [line for line in caplog.messages if line.startswith("textfile")]
    assert writer.writes == FAILING_WRITES + 1
    assert said == [
        f"textfile {tmp_path}/gpu.prom: No space left on device; the old file stays",
        f"textfile {tmp_path}/gpu.prom: is written again, after 0 s",
    ]
