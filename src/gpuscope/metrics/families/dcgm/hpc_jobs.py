"""dcgm-exporter's HPC job mapping: a folder with a file for each GPU, in it one job a line.

Files are named `<gpu>` or `<gpu>.<GPU instance>`; a batch system's prolog writes them. They are read again each
time, so that a job shows up at once. A file that cannot be read is a GPU without jobs.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpuscope.metrics.families.dcgm.device_selector import Entity, number_of

log = logging.getLogger("gpuscope.dcgm")

_GPU_FILE = re.compile(r"\d+(?:\.\d+)?\Z", re.ASCII)
MAX_BYTES = 1 << 16
MAX_JOBS = 64  # each job is a copy of every series of its GPU


class HpcJobs:
    """Which jobs run on which GPU, as the folder says."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._trouble = ""

    def read(self) -> Mapping[str, tuple[str, ...]]:
        """Jobs by file name; nothing while the folder is not there."""
        jobs: dict[str, tuple[str, ...]] = {}
        try:
            for entry in os.scandir(self._folder):
                if _GPU_FILE.match(entry.name) and entry.is_file():
                    jobs[entry.name] = _read_jobs(Path(entry.path))
        except OSError as error:
            self._say(f"HPC job folder {self._folder} cannot be read: {error.strerror}")
        else:
            self._say("")
        return jobs

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s; going on without hpc_job", trouble)
        self._trouble = trouble


def _read_jobs(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    # The same job twice would be the same series twice.
    return tuple(dict.fromkeys(line.removesuffix("\r") for line in lines))[:MAX_JOBS]


def jobs_of(entity: Entity, jobs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    gpu = str(number_of(entity.device, entity.device.index))
    if entity.instance is not None:
        return jobs.get(f"{gpu}.{entity.instance.gpu_instance}", ())
    return jobs.get(gpu, ())
