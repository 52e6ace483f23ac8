"""`squeue`: every job the controller still knows, as text; one line for an array that waits.

Input: what squeue printed with `ARGUMENTS`; output: jobs and how many lines were not understood. A pending
job's TRES are what it requests. A job id that is not a number, or a line with fewer fields, is counted as bad.
Without slurmdbd a user may choose any text as account: every `|` beyond the expected ones is the account's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import itemgetter
from sys import intern
from typing import TypeVar

from gpuscope.readings import ABSENT, Maybe
from gpuscope.readings.slurm import Gres, SlurmJob
from gpuscope.sources.slurm.delimited import split_records
from gpuscope.sources.slurm.gres import gres_of_tres
from gpuscope.sources.slurm.values import count_array_tasks, parse_integer, parse_time

FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "UserName", "Account", "Partition", "State", "NumNodes",
    "NumCPUs", "tres-alloc", "NodeList", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "QOS",
)  # fmt: skip
_ACCOUNT = FIELDS.index("Account")
FREE_TEXT = ("Reason", "Name")
ARGUMENTS = ("-a", "-h", "-t", "all", "-O")
MAX_NAME_CHARACTERS = 256
MAX_REASON_CHARACTERS = 256
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Parsed:
    """`bad_lines` counts records that were not understood."""

    jobs: tuple[SlurmJob, ...]
    bad_lines: int = 0


class SqueueParser:
    """Keeps the jobs of the last run: from one run to the next few of them change.

    They are kept by a digest, because the text of 20,000 jobs takes 7 MiB.
    """

    def __init__(self) -> None:
        self._jobs: dict[bytes, SlurmJob] = {}

    def parse(self, text: str, mark: str, fields: Sequence[str] = FIELDS) -> Parsed:
        """`fields` are the requested ones, without those that this squeue refused."""
        reader = _JobReader({name: position for position, name in enumerate(fields)})
        known, self._jobs = self._jobs, {}
        bad = 0
        for head, name in split_records(text, len(FREE_TEXT), mark, "squeue"):
            record = f"{head}{mark}{name}".encode("utf-8", "surrogatepass")
            digest = blake2b(record, digest_size=16).digest()
            job = known.get(digest) or _to_job(reader, head, name, len(fields))
            if job is None:
                bad += 1
            else:
                self._jobs[digest] = job
        return Parsed(tuple(self._jobs.values()), bad)


def parse_squeue(text: str, mark: str, fields: Sequence[str] = FIELDS) -> Parsed:
    return SqueueParser().parse(text, mark, fields)


def _to_job(reader: _JobReader, head: str, name: str, field_count: int) -> SlurmJob | None:
    cells = head.removeprefix("\n").split("|")
    extra = len(cells) - 1 - field_count
    if extra < 0:
        return None
    if extra:  # no other field has one: slurmctld writes the reason, administrators the other names
        end = _ACCOUNT + extra + 1
        cells[_ACCOUNT:end] = ["|".join(cells[_ACCOUNT:end])]
    return reader.read(cells, cells.pop(), name)


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

    def read(self, cells: list[str], reason: str, name: str) -> SlurmJob | None:
        cells.append("")  # what position -1 finds: a field this squeue does not have is empty
        (job, array_job, array_task, het, user, account, partition, state, nodes, cpus, tres, node_list, submit,
         eligible, start, end, qos) = self._select(cells)  # fmt: skip
        if not (job.isascii() and job.isdecimal()) or not state:
            return None
        in_array = array_task not in ("N/A", "")
        times = self._times
        return SlurmJob(
            int(job),
            intern(user),
            intern(account[:MAX_NAME_CHARACTERS]),
            self._partitions[partition],
            intern(state),
            intern(reason[:MAX_REASON_CHARACTERS]),
            name[:MAX_NAME_CHARACTERS],
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
