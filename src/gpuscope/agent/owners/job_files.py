"""The folder in which a batch system's prolog notes which job has which GPU.

One file for each GPU, named by its number as dcgm-exporter wants it (`2`, or `2.7` with the GPU instance), or
by its UUID as jobstats does (`_` stands for the `/` of a MIG device). Each line is a job, its id first (`4711`,
or `4711 1001`, or with more words). gpuscope's own prolog adds `job-4711` with `key=value` lines about the job.
The epilog removes what belongs to a job that ended; a node that crashed may leave something behind. The folder
may be on NFS and hang, so only a worker reads it; the `dcgm` family takes the lines from the snapshot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.allocation_claims import AllocationClaim
from gpuscope.agent.worker import FunctionReader, Timing, Worker
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError
from gpuscope.base.files import read_regular_file
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, JobFacts, Maybe

_FILE_NAME = re.compile(r"(?:\d{1,4}(?:\.\d{1,4})?|(?:GPU|MIG)-[\w-]{1,80})\Z", re.ASCII)
_JOB_FILE = re.compile(r"job-(\d{1,10})\Z", re.ASCII)
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,10})?\Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}\Z", re.ASCII)
_SLUID = re.compile(r"s[0-9A-Z]{13}\Z", re.ASCII)
MAX_BYTES: Final = 1 << 16
MAX_FILES: Final = 1024
MAX_ENTRIES: Final = 16_384  # of the folder that are looked at
MAX_LINES: Final = 256  # of a file: jobs that share a GPU
MAX_LINE_CHARACTERS: Final = 1024  # a line is a label of `--as dcgm-exporter`
MAX_NAME: Final = 64
DEADLINE_SECONDS: Final = 60.0
UNLIMITED_SECONDS: Final = 365 * 86_400.0  # Slurm tells a prolog this for a job without a time limit


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The distinct lines of each GPU's file by its name, and what the files say about jobs."""

    lines: Mapping[str, tuple[str, ...]]
    claims: tuple[AllocationClaim, ...]
    jobs: Mapping[str, JobFacts] = field(default_factory=dict)
    sluids: Mapping[str, str] = field(default_factory=dict)
    """Job ids by the names that cgroups have from Slurm 26.05 on."""


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
            names = sorted(
                entry.name
                for entry in islice(entries, MAX_ENTRIES)
                if (_FILE_NAME.match(entry.name) or _JOB_FILE.match(entry.name)) and entry.is_file()
            )
    except OSError as error:
        raise SourceError(f"job folder {folder}: {error.strerror}") from None
    read = {name: _read_lines(Path(folder, name)) for name in names[:MAX_FILES]}
    lines = {name: found for name, found in read.items() if not name.startswith("job-")}
    details = {name[4:]: _pairs(found) for name, found in read.items() if name.startswith("job-")}
    sluids = {pairs["sluid"]: job for job, pairs in details.items() if _SLUID.match(pairs.get("sluid", ""))}
    jobs = {job: _to_facts(pairs) for job, pairs in details.items()}
    return JobFiles(lines, tuple(_to_claims(lines)), jobs, sluids)


def _read_lines(path: Path) -> tuple[str, ...]:
    try:
        text = read_regular_file(path, MAX_BYTES).decode("utf-8", "replace")
    except OSError:  # too large, or removed or replaced in the meantime
        return ()
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    distinct = dict.fromkeys(line.removesuffix("\r")[:MAX_LINE_CHARACTERS] for line in lines)
    return tuple(islice(distinct, MAX_LINES))


def _pairs(lines: tuple[str, ...]) -> dict[str, str]:
    split = (line.partition("=") for line in lines)
    return {name: value.strip() for name, equals, value in split if equals and value.strip()}


def _to_facts(pairs: Mapping[str, str]) -> JobFacts:
    def text(name: str) -> Maybe[str]:
        value = pairs.get(name, "")
        return value if 0 < len(value) <= MAX_NAME and value.isprintable() else ABSENT

    def time(name: str) -> float | None:
        value = pairs.get(name, "")
        return float(value) if _NUMBER.match(value) and 0 < int(value) < 1 << 32 else None

    array, start, end = pairs.get("array", ""), time("start"), time("end")
    is_limited = end is not None and (start is None or end - start < UNLIMITED_SECONDS)
    return JobFacts(
        user=text("user"),
        account=text("account"),
        partition=text("partition"),
        array=array if "_" in array and _JOB_ID.match(array) else ABSENT,
        ends_at=end if end is not None and is_limited else ABSENT,
    )


def _to_claims(lines: Mapping[str, tuple[str, ...]]) -> Iterator[AllocationClaim]:
    by_uuid = {job for name, jobs in lines.items() if not name[0].isdigit() for job in _job_ids(jobs)}
    for name, jobs in lines.items():
        for job in _job_ids(jobs):
            # jobstats writes both: the UUID is certain, the number is not always the device's.
            if job not in by_uuid or not name[0].isdigit():
                yield AllocationClaim(device_id=name.replace("_", "/"), resource="slurm", job=job)


def _job_ids(lines: tuple[str, ...]) -> Iterator[str]:
    first_words = dict.fromkeys(line.split(None, 1)[0] for line in lines if line.strip())
    return filter(_JOB_ID.match, first_words)
