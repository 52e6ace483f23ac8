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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.allocation_matching import AllocationClaim
from gpuscope.agent.worker import FunctionReader, Timing, Worker
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError
from gpuscope.base.files import read_regular_file
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Device, JobFacts, Maybe, SlurmState
from gpuscope.model.readings.slurm import Gres, SlurmJob, SlurmNode
from gpuscope.model.slurm_gpu_index import NumberedGpu, gpus_by_slurm_index, is_of_model, short_node_name

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


# What Slurm itself says about the GPUs of this node, on a machine that reads Slurm and is one of its nodes.
#
# Input: the `SlurmState` of the cycle; output: claims by UUID and facts about the jobs here. Absent where
# Slurm is not read, does not know where its jobs are, or does not have this node. Other nodes have a prolog's
# files, or are joined by the server.


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """Compared by identity: the same object while neither Slurm's state nor the GPUs changed."""

    claims: tuple[AllocationClaim, ...]
    facts: Mapping[str, JobFacts]


class SlurmClaims:
    def __init__(self, node: str) -> None:
        self._node = short_node_name(node)
        self._made_from: tuple[object, object] = (None, None)
        self._made: Maybe[LocalJobs] = ABSENT

    def read(self, state: Maybe[SlurmState], devices: Sequence[Device]) -> Maybe[LocalJobs]:
        if state is ABSENT:
            return ABSENT
        gpus = tuple(_numbered(devices))
        if self._made_from[0] is not state or self._made_from[1] != gpus:
            self._made_from = state, gpus
            self._made = self._make(state, gpus)
        return self._made

    def _make(self, state: SlurmState, gpus: Sequence[NumberedGpu]) -> Maybe[LocalJobs]:
        nodes = () if state.nodes is ABSENT else state.nodes
        node = next((node for node in nodes if short_node_name(node.name) == self._node), None)
        if node is None or state.placements is ABSENT or state.jobs is ABSENT:
            return ABSENT
        by_index = gpus_by_slurm_index(gpus, _count_gpus(node))
        jobs = {job.job_id: job for job in state.jobs}
        claims: list[AllocationClaim] = []
        facts: dict[str, JobFacts] = {}
        for job_id, placements in state.placements.items():
            held = [gres for placement in placements if placement.node == node.name for gres in placement.gres]
            if held and job_id in jobs:
                facts[str(job_id)] = job_facts(jobs[job_id])
                claims += _claims(str(job_id), node.name, held, by_index)
        return LocalJobs(tuple(claims), facts)


def job_facts(job: SlurmJob) -> JobFacts:
    array: Maybe[str] = ABSENT
    if job.array_job_id is not ABSENT and job.array_task.isdecimal():
        array = f"{job.array_job_id}_{job.array_task}"
    return JobFacts(
        user=job.user or ABSENT,
        account=job.account or ABSENT,
        partition=",".join(job.partitions) or ABSENT,
        array=array,
        ends_at=job.ends_at,
    )


def _claims(
    job: str, node: str, held: Iterable[Gres], by_index: Mapping[int, NumberedGpu]
) -> Iterator[AllocationClaim]:
    """A job with shards or MPS shares has the GPU that they are of, like the jobs it shares it with."""
    indices = dict.fromkeys(
        (index, gres.model) for gres in held if gres.indices is not ABSENT for index in gres.indices
    )
    for index, model in indices:
        gpu = by_index.get(index)
        known = gpu is not None and is_of_model(gpu, model)
        device_id = gpu.uuid if gpu is not None and known else f"{node}:{model or 'gpu'}:{index}"
        yield AllocationClaim(device_id=device_id, resource="slurm", job=job)


def _numbered(devices: Iterable[Device]) -> Iterator[NumberedGpu]:
    for device in devices:
        number = device.index if device.minor_number is ABSENT else device.minor_number
        if not device.instances:
            yield NumberedGpu(device.uuid, number)
        for instance in device.instances:
            profile = "" if instance.profile is ABSENT else instance.profile
            yield NumberedGpu(instance.uuid, number, profile or "?", instance.ids)


def _count_gpus(node: SlurmNode) -> int:
    return sum(gres.count for gres in node.gres if gres.kind == "gpu")
