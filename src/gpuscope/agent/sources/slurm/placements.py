"""Where the GPUs of each job are: the text of `scontrol show job -d`, one run for all jobs.

Names, comments and submit lines stand among the rest, and may imitate whole records. Such text can add a record
of another job; it cannot remove or change that job's own. So a job that had its resources before the run and
has one record in it is placed by it. A job with several is asked for alone, a bounded number of times; its GPUs
stay unknown until then. Only a job whose own text imitates its own record stays unknown for good.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpuscope.agent.sources.slurm.gres import parse_held
from gpuscope.agent.sources.slurm.hostlist import MAX_PLACEMENTS, expand_hostlist
from gpuscope.agent.sources.slurm.values import parse_integer
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import HOLDS_RESOURCES, JobPlacement, SlurmJob

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
