"""Jobs of Slurm, from the text of `squeue`, and the GPUs they were given, from `scontrol show job -d`.

Input: what squeue printed with `ARGUMENTS`; output: jobs. A pending job's TRES are what it requests. Name and
account are text of the user (without slurmdbd an account is any text), a reason may repeat some of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from sys import intern
from typing import Final, TypeVar

from gpuscope.agent.sources.slurm.gres import MAX_PLACEMENTS, expand_hostlist, gres_of_tres, parse_held
from gpuscope.agent.sources.slurm.values import RecordSplitter, count_array_tasks, parse_integer, parse_time
from gpuscope.base.errors import SourceError, UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import HOLDS_RESOURCES, Gres, JobPlacement, SlurmJob

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


# Where the GPUs of each job are: the text of `scontrol show job -d`, one run for all jobs.
#
# Names, comments and submit lines stand among the rest, and may imitate whole records. Such text can add a
# record of another job; it cannot remove or change that job's own. So a job that had its resources before the
# run and has one record in it is placed by it. A job with several is asked for alone, a bounded number of
# times; its GPUs stay unknown until then. Only a job whose own text imitates its own record stays unknown for
# good.

log = logging.getLogger("gpuscope.source")

MAX_SINGLE_REQUESTS: Final = 100
_JOB_GRES = "\n   JOB_GRES="
_NODES = re.compile(r" +Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
# Possessive (`*+`, `++`): a third faster, because the engine keeps no way back.
_OTHER_LINES = re.compile(rb"(?:^(?!JobId=|   JOB_GRES=|     Nodes=).*+\n)++", re.MULTILINE)

Placements = Mapping[int, tuple[JobPlacement, ...]]


def keep_placement_lines(lines: bytes) -> bytes:
    """The lines of `scontrol show job -d` that are read here; others leave an empty line.

    20,000 jobs print 25 MB, of which this is a twentieth.
    """
    return _OTHER_LINES.sub(b"\n", lines)


class PlacementReader:
    """Remembers the jobs that it has asked for alone: a job's GPUs do not change while it runs."""

    def __init__(self, show_job: Callable[[int], str]) -> None:
        """`show_job` is `scontrol show job -d` for one job."""
        self._show_job = show_job
        self._asked: dict[tuple[int, Maybe[float]], tuple[JobPlacement, ...]] = {}
        self._logged: frozenset[int] = frozenset()

    def read(self, text: str, jobs: Iterable[SlurmJob]) -> Placements:
        """`jobs` were listed before the run that printed `text`."""
        held = {job.job_id: job for job in jobs if job.state in HOLDS_RESOURCES}
        placements, imitated = parse_placements(text, held)
        self._log(imitated)
        self._asked = {key: self._asked[key] for job in imitated if (key := _key(held[job])) in self._asked}
        self._ask([held[job] for job in sorted(imitated) if _key(held[job]) not in self._asked])
        return {**placements, **{number: found for (number, _), found in self._asked.items() if found}}

    def _ask(self, jobs: list[SlurmJob]) -> None:
        for job in jobs[:MAX_SINGLE_REQUESTS]:
            try:
                text = self._show_job(job.job_id)
            except SourceError:
                return  # asked again with the next list
            placements, _ = parse_placements(text, {job.job_id: job})
            self._asked[_key(job)] = placements.get(job.job_id, ())

    def _log(self, imitated: frozenset[int]) -> None:
        if imitated - self._logged:
            listed = ", ".join(map(str, sorted(imitated)[:5])) + (", …" if len(imitated) > 5 else "")
            log.warning(
                "source slurm: the text of some job (its name, comment or submit line) imitates the records of "
                "other jobs (%s); their GPUs are asked for one job at a time, at most %d at once",
                listed,
                MAX_SINGLE_REQUESTS,
            )
        self._logged = imitated


def _key(job: SlurmJob) -> tuple[int, Maybe[float]]:
    return job.job_id, job.started_at  # a job that was requeued has other GPUs


def parse_placements(text: str, jobs: Mapping[int, SlurmJob]) -> tuple[Placements, frozenset[int]]:
    """What each of `jobs` holds on each of its nodes, and the jobs that have more than one record."""
    records: dict[int, list[str]] = {}
    for record in ("\n" + text).split("\nJobId=")[1:]:
        head, line, rest = record.partition(_JOB_GRES)
        number = parse_integer(head.partition(" ")[0])
        if number is not ABSENT and number in jobs:
            # A record without GRES counts too: else an imitation would be the only one of its job.
            records.setdefault(number, []).append(line + rest)
    placements: dict[int, tuple[JobPlacement, ...]] = {}
    imitated: set[int] = set()
    left = MAX_PLACEMENTS
    for number, (rest, *more) in records.items():
        if more or rest.count(_JOB_GRES) > 1:
            imitated.add(number)
            continue
        found = _parse_nodes(
            rest.removeprefix(_JOB_GRES).partition("\n")[2], min(left, jobs[number].node_count)
        )
        left -= len(found)
        if found:
            placements[number] = found
    return placements, frozenset(imitated)


def _parse_nodes(rest: str, max_nodes: int) -> tuple[JobPlacement, ...]:
    """From the lines behind `JOB_GRES=`, up to the first that is not of a node.

    () if Slurm knows no counts, or if there are more nodes than the job has.
    """
    found: list[JobPlacement] = []
    while rest.startswith("     Nodes="):
        line, _, rest = rest.partition("\n")
        match = _NODES.fullmatch(line)
        if match is None:
            break
        held = parse_held(match[2])
        if held is ABSENT:
            return ()
        try:
            names = expand_hostlist(match[1], max_nodes - len(found))
        except ValueError:
            return ()
        found.extend(JobPlacement(name, held) for name in names)
    return tuple(found) if len(found) <= max_nodes else ()
