"""The folder in which a batch system's prolog notes which job has which GPU.

A file for each GPU, named by its number (`2`, or `2.7` with the GPU instance) as dcgm-exporter wants it, or by
its UUID as jobstats does; in it one job a line, its id first (`4711`, or `4711 1001`, or with more behind). The
file of a job that is over goes with its epilog; a node that crashed may leave one behind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuscope.errors import SourceError
from gpuscope.owners.claims import Claim
from gpuscope.readings import ABSENT, Maybe, Reading
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier

_FILE = re.compile(r"(?:\d{1,4}(?:\.\d{1,4})?|(?:GPU|MIG)-[\w/-]{1,80})\Z", re.ASCII)
_JOB = re.compile(r"\d{1,10}(?:_\d{1,10})?\Z", re.ASCII)
_MOST_BYTES: Final = 1 << 16
_MOST_FILES: Final = 1024


class JobFiles:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.claims: Maybe[tuple[Claim, ...]] = ABSENT

    def read(self, due: frozenset[Tier]) -> Reading:
        try:
            claims = tuple(read_job_files(self._folder))
        except OSError as error:
            self.claims = ABSENT
            raise SourceError(f"job folder {self._folder}: {error.strerror}") from None
        if claims != self.claims:
            self.claims = claims
        return Reading()

    def close(self) -> None:
        self.claims = ABSENT


def read_job_files(folder: str) -> Iterator[Claim]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if _FILE.match(entry.name))
    seen = set()
    for name in names[:_MOST_FILES]:
        for job in _jobs(Path(folder, name)):
            if (name, job) not in seen:
                seen.add((name, job))
                yield Claim(device_id=name, resource="slurm", job=job)


def _jobs(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:  # the epilog took it away while we looked
        return []
    words = (line.split(None, 1)[0] for line in text.splitlines() if line.strip())
    return [word for word in words if _JOB.match(word)]


def job_files_spec(files: JobFiles) -> SourceSpec:
    def open_files(settings: Settings) -> JobFiles:
        return files

    return SourceSpec(
        name="job-files",
        summary="whom the batch system gave the GPUs to, from its prolog's files",
        open=open_files,
        interval_seconds=lambda settings: settings.kubelet_interval,
        deadline_seconds=lambda settings: 60.0,
    )
