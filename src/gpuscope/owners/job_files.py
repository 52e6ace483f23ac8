"""The folder in which a batch system's prolog notes which job has which GPU.

One file for each GPU, named by its number as dcgm-exporter wants it (`2`, or `2.7` with the GPU instance), or
by its UUID as jobstats does. Each line is a job, its id first (`4711`, or `4711 1001`, or with more words). The
epilog removes the file of a job that ended; a node that crashed may leave one behind. The folder may be on NFS
and hang, so only a worker reads it; the `dcgm` family takes the lines from the snapshot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.clock import Clock
from gpuscope.errors import SourceError
from gpuscope.owners.allocation_claims import AllocationClaim
from gpuscope.settings import Settings
from gpuscope.worker import FunctionReader, Timing, Worker

_FILE_NAME = re.compile(r"(?:\d{1,4}(?:\.\d{1,4})?|(?:GPU|MIG)-[\w/-]{1,80})\Z", re.ASCII)
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,10})?\Z", re.ASCII)
MAX_BYTES: Final = 1 << 16
MAX_FILES: Final = 1024
DEADLINE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The distinct lines of each file by its name, and the jobs they stand for."""

    lines: Mapping[str, tuple[str, ...]]
    claims: tuple[AllocationClaim, ...]


def job_files_worker(settings: Settings, clock: Clock) -> Worker[JobFiles]:
    reader = FunctionReader(lambda: read_job_files(settings.job_map_dir))
    return Worker(
        "job-files",
        "allocations of this node's GPUs to jobs, from the files of the batch system's prolog",
        lambda: reader,
        # As often as the fast values: a job that starts is on its GPU's series at once.
        Timing(interval=settings.interval, deadline=DEADLINE_SECONDS, slack=0.5 * settings.interval),
        clock,
        reuse_equal=True,
    )


def read_job_files(folder: str) -> JobFiles:
    try:
        with os.scandir(folder) as entries:
            # Only regular files: opening a named pipe would block.
            names = sorted(entry.name for entry in entries if _FILE_NAME.match(entry.name) and entry.is_file())
    except OSError as error:
        raise SourceError(f"job folder {folder}: {error.strerror}") from None
    lines = {name: _read_lines(Path(folder, name)) for name in names[:MAX_FILES]}
    return JobFiles(lines, tuple(_to_claims(lines)))


def _read_lines(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:  # the epilog removed it in the meantime
        return ()
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(dict.fromkeys(line.removesuffix("\r") for line in lines))


def _to_claims(lines: Mapping[str, tuple[str, ...]]) -> Iterator[AllocationClaim]:
    for name, jobs in lines.items():
        first_words = dict.fromkeys(line.split(None, 1)[0] for line in jobs if line.strip())
        for job in filter(_JOB_ID.match, first_words):
            yield AllocationClaim(device_id=name, resource="slurm", job=job)
