"""`squeue`: every job the controller still knows; one record for an array that waits.

Input: what squeue printed with `ARGUMENTS`; output: jobs. A pending job's TRES are what it requests. Name and
account are text of the user (without slurmdbd an account is any text), a reason may repeat some of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from sys import intern
from typing import Final, TypeVar

from gpuscope.agent.sources.slurm.gres import gres_of_tres
from gpuscope.agent.sources.slurm.records import RecordSplitter
from gpuscope.agent.sources.slurm.values import count_array_tasks, parse_integer, parse_time
from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import Gres, SlurmJob

WIDTHS: Final = {"Account": 64, "Reason": 160, "Name": 128}
"""Bytes of free text. Slurm's longest own reason has 97 characters; lists of nodes behind one are not used."""
FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "UserName", "Partition", "State", "NumNodes", "NumCPUs",
    "tres-alloc", "NodeList", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "QOS",
)  # fmt: skip
ARGUMENTS = ("-a", "-h", "-t", "all", "-O")
V = TypeVar("V")


class SqueueRun:
    """Reads what one run of squeue prints.

    `known` are the jobs of the run before by a digest of their record: from one run to the next few change.
    """

    def __init__(self, known: Mapping[bytes, SlurmJob], fields: Sequence[str] = FIELDS) -> None:
        """`fields` are the requested ones, without those that this squeue refused."""
        self._known = known
        self._splitter = RecordSplitter(WIDTHS, len(fields), "squeue")
        self._reader = _JobReader({name: len(WIDTHS) + position for position, name in enumerate(fields)})
        self._jobs: dict[bytes, SlurmJob] = {}

    def take(self, lines: bytes) -> bytes:
        """Nothing is left of lines that were read. Raises UnusableAnswer."""
        for record in self._splitter.records(lines):
            digest = blake2b(record, digest_size=16).digest()
            self._jobs[digest] = self._known.get(digest) or self._reader.read(self._splitter.cells(record))
        return b""

    def finish(self, unfinished_line: str = "") -> Mapping[bytes, SlurmJob]:
        self._splitter.finish(unfinished_line)
        return self._jobs


def parse_squeue(output: bytes) -> tuple[SlurmJob, ...]:
    run = SqueueRun({})
    run.take(output)
    return tuple(run.finish().values())


class _ParsedTexts(dict[str, V]):
    """Values by their text; a text is parsed the first time it is looked up."""

    def __init__(self, parse: Callable[[str], V]) -> None:
        self._parse = parse

    def __missing__(self, text: str) -> V:
        value = self[text] = self._parse(text)
        return value


class _JobReader:
    """Keeps texts and parsed values that thousands of jobs have in common."""

    def __init__(self, columns: dict[str, int]) -> None:
        self._gres: _ParsedTexts[tuple[Gres, ...]] = _ParsedTexts(gres_of_tres)
        self._times: _ParsedTexts[Maybe[float]] = _ParsedTexts(parse_time)
        self._counts: _ParsedTexts[int] = _ParsedTexts(_count)
        self._partitions: _ParsedTexts[tuple[str, ...]] = _ParsedTexts(_split)
        self._select = itemgetter(*(columns.get(name, -1) for name in FIELDS))

    def read(self, cells: list[str]) -> SlurmJob:
        account, reason, name = cells[: len(WIDTHS)]
        cells.append("")  # what position -1 finds: a field this squeue does not have is empty
        (job, array_job, array_task, het, user, partition, state, nodes, cpus, tres, node_list, submit,
         eligible, start, end, qos) = self._select(cells)  # fmt: skip
        if not (job.isascii() and job.isdecimal()) or not state:
            raise UnusableAnswer("squeue printed a job without a number or a state, so none of it is used")
        in_array = array_task not in ("N/A", "")
        times = self._times
        return SlurmJob(
            int(job),
            intern(user),
            intern(account),
            self._partitions[partition],
            intern(state),
            intern(reason),
            name,
            self._counts[cpus],
            self._counts[nodes],
            self._gres[tres],
            intern(node_list),
            count_array_tasks(array_task) if in_array and not array_task.isdecimal() else 1,
            parse_integer(array_job) if in_array else ABSENT,
            array_task if in_array else "",
            parse_integer(het),
            "" if qos == "(null)" else intern(qos),
            times[submit],
            times[eligible],
            times[start],
            times[end],
        )


def _split(partitions: str) -> tuple[str, ...]:
    return tuple(name for name in partitions.split(",") if name)


def _count(text: str) -> int:
    """A count, also one that Slurm shortens (`2K`) or gives as a range of nodes (`1-4`)."""
    first = text.partition("-")[0]
    if first.isdecimal():
        return int(first)
    number = parse_integer(first[:-1])
    return 0 if number is ABSENT else number * 1000 if first[-1:] in "Kk" else number
