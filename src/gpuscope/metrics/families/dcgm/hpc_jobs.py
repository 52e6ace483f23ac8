"""dcgm-exporter's HPC job mapping: a folder with one file per GPU and one job per line.

Files are named `<gpu>` or `<gpu>.<GPU instance>`; the prolog of a batch system writes them. They are read for
every snapshot, so that a new job appears at once. A GPU whose file cannot be read has no jobs.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpuscope.episode_log import EpisodeLog
from gpuscope.metrics.families.dcgm.device_selector import DcgmEntity, number_of

log = logging.getLogger("gpuscope.dcgm")

_GPU_FILE = re.compile(r"\d+(?:\.\d+)?\Z", re.ASCII)
MAX_BYTES = 1 << 16
MAX_JOBS = 64  # every job copies all series of its GPU


class HpcJobs:
    """The jobs on each GPU according to the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._log = EpisodeLog(log, f"HPC job folder {folder}", recovered="can be read again")

    def read(self) -> Mapping[str, tuple[str, ...]]:
        """Jobs by file name; none while the folder does not exist."""
        jobs: dict[str, tuple[str, ...]] = {}
        try:
            for entry in os.scandir(self._folder):
                if _GPU_FILE.match(entry.name) and entry.is_file():
                    jobs[entry.name] = _read_jobs(Path(entry.path))
        except OSError as error:
            self._log.failed(f"cannot be read: {error.strerror}; series have no hpc_job label")
        else:
            self._log.succeeded()
        return jobs


def _read_jobs(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    # A repeated job would create duplicate series.
    return tuple(dict.fromkeys(line.removesuffix("\r") for line in lines))[:MAX_JOBS]


def jobs_of(entity: DcgmEntity, jobs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    gpu = str(number_of(entity.device, entity.device.index))
    if entity.instance is not None:
        return jobs.get(f"{gpu}.{entity.instance.gpu_instance}", ())
    return jobs.get(gpu, ())
