"""`squeue`: every job the controller still knows, as text; one line for an array that waits.

In goes what squeue printed with `ARGUMENTS`; out come jobs and how many lines were not understood. A pending
job's TRES are what it asked for. A job id that is not a number, or a line with fewer fields, is counted as bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import intern

from gpuscope.readings import ABSENT, Maybe
from gpuscope.readings.slurm import Gres, SlurmJob
from gpuscope.sources.slurm.delimited import split_records
from gpuscope.sources.slurm.gres import gres_of_tres
from gpuscope.sources.slurm.values import count_array_tasks, parse_integer, parse_time

FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "UserName", "Account", "Partition", "State", "NumNodes",
    "NumCPUs", "tres-alloc", "NodeList", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "QOS",
)  # fmt: skip
FREE_TEXT = ("Reason", "Name")
ARGUMENTS = ("-a", "-h", "-t", "all", "-O")
MAX_NAME_CHARACTERS = 256
MAX_REASON_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Parsed:
    """`bad_lines` counts records that were not understood."""

    jobs: tuple[SlurmJob, ...]
    bad_lines: int = 0


class SqueueParser:
    """Keeps the jobs of the last run by their text: from one run to the next few of them change."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], SlurmJob] = {}

    def parse(self, text: str, mark: str, fields: Sequence[str] = FIELDS) -> Parsed:
        """`fields` are those that were asked for, without those that this squeue refused."""
        reader = _JobReader({name: position for position, name in enumerate(fields)})
        known, self._jobs = self._jobs, {}
        bad = 0
        for head, name in split_records(text, len(FREE_TEXT), mark, "squeue"):
            job = known.get((head, name)) or _to_job(reader, head, name, len(fields))
            if job is None:
                bad += 1
            else:
                self._jobs[head, name] = job
        return Parsed(tuple(self._jobs.values()), bad)


def parse_squeue(text: str, mark: str, fields: Sequence[str] = FIELDS) -> Parsed:
    return SqueueParser().parse(text, mark, fields)


def _to_job(reader: _JobReader, head: str, name: str, field_count: int) -> SlurmJob | None:
    cells = head.removeprefix("\n").split("|", field_count)
    return None if len(cells) <= field_count else reader.read(cells, cells.pop(), name)


class _JobReader:
    """Keeps texts and parsed values that thousands of jobs have in common."""

    def __init__(self, columns: dict[str, int]) -> None:
        self._tres: dict[str, tuple[Gres, ...]] = {}
        self._times: dict[str, Maybe[float]] = {}
        self._partitions: dict[str, tuple[str, ...]] = {}
        self._columns = [columns.get(name, -1) for name in FIELDS]

    def read(self, cells: list[str], reason: str, name: str) -> SlurmJob | None:
        cells.append("")  # what position -1 finds: a field this squeue does not have is empty
        (job, array_job, array_task, het, user, account, partition, state, nodes, cpus, tres, node_list, submit,
         eligible, start, end, qos) = (cells[position] for position in self._columns)  # fmt: skip
        if not (job.isascii() and job.isdecimal()) or not state:
            return None
        in_array = array_task not in ("N/A", "")
        return SlurmJob(
            int(job),
            intern(user),
            intern(account),
            self._split(partition),
            intern(state),
            intern(reason[:MAX_REASON_CHARACTERS]),
            name[:MAX_NAME_CHARACTERS],
            _count(cpus),
            _count(nodes),
            self._gres(tres),
            intern(node_list),
            count_array_tasks(array_task) if in_array and not array_task.isdecimal() else 1,
            parse_integer(array_job) if in_array else ABSENT,
            array_task if in_array else "",
            parse_integer(het),
            intern(qos),
            self._time(submit),
            self._time(eligible),
            self._time(start),
            self._time(end),
        )

    def _split(self, text: str) -> tuple[str, ...]:
        known = self._partitions.get(text)
        if known is None:
            known = self._partitions[text] = tuple(part for part in text.split(",") if part)
        return known

    def _gres(self, text: str) -> tuple[Gres, ...]:
        known = self._tres.get(text)
        if known is None:
            known = self._tres[text] = gres_of_tres(text)
        return known

    def _time(self, text: str) -> Maybe[float]:
        known = self._times.get(text)
        if known is None:
            known = self._times[text] = parse_time(text)
        return known


def _count(text: str) -> int:
    """A count, also one that Slurm shortens (`2K`) or gives as a range of nodes (`1-4`)."""
    first = text.partition("-")[0]
    if first.isdecimal():
        return int(first)
    number = parse_integer(first[:-1])
    return 0 if number is ABSENT else number * 1000 if first[-1:] in "Kk" else number
