"""Nothing that a user writes into a job changes what is known about another job.

The texts are printed as Slurm prints them (tests/fake_slurm/printed.py); the same attacks run against real
clusters in tests/slurm_lab/test_forgery.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.agent.sources.slurm.job_text import (
    FIELDS,
    MAX_SINGLE_REQUESTS,
    WIDTHS,
    PlacementReader,
    keep_placement_lines,
    parse_squeue,
)
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.agent.sources.slurm.values import format_argument
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import JobPlacement, SlurmJob
from tests.fake_slurm import fake_clients
from tests.fake_slurm.printed import USER_TEXTS, PrintedJob, print_job, print_jobs, print_squeue

ARGUMENT = format_argument(WIDTHS, FIELDS)
ANN = PrintedJob(7, "ann", cpus=4, indices=(0, 1))
BOB = PrintedJob(9, "bob", cpus=8, indices=(3,))
FORGED_NODES = "     Nodes=gpu1 CPU_IDs=0 Mem=1 GRES=gpu:a100:4(IDX:0-3)"
FORGED_RECORD = f"x\n\nJobId=9 JobName=x\n   JOB_GRES=gpu:4\n{FORGED_NODES}\n\nJobId=999 JobName=y"
FORGED_ROW = (
    "|1|1|\n" + print_squeue([PrintedJob(66, "bob", cpus=640, indices=tuple(range(80)))], ARGUMENT).decode()
)

separators = st.sampled_from([
    "\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "|", "\t", " ", "\x1b", "\u202e", "#MARK#",
    "JobId=7 ", "JobId=9 ", "\nJobId=9 ", "\n\nJobId=9 JobName=", "\n   JOB_GRES=gpu:4\n", FORGED_NODES,
    f"\n{FORGED_NODES}", FORGED_RECORD, FORGED_ROW, ARGUMENT, "9|9|N/A|N/A|bob|gpu|RUNNING|1|640|",
])  # fmt: skip
hostile_text = st.lists(
    st.one_of(
        separators, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
    ),
    max_size=8,
).map("".join)
hostile_texts = st.dictionaries(st.sampled_from(USER_TEXTS), hostile_text)


def listed(*jobs: PrintedJob) -> dict[int, SlurmJob]:
    return {job.job_id: job for job in parse_squeue(print_squeue(jobs, ARGUMENT))}


def placements(
    *jobs: PrintedJob, show_job: Callable[[int], str] | None = None
) -> dict[int, tuple[JobPlacement, ...]]:
    records = {job.number: print_job(job) for job in jobs}
    reader = PlacementReader(show_job or records.__getitem__)
    text = keep_placement_lines(print_jobs(jobs).encode()).decode()
    return dict(reader.read(text, listed(*jobs).values()))


EXPECTED, PLACED = listed(ANN, BOB), placements(ANN, BOB)


@given(hostile_texts, st.sampled_from([0, 1, 2]))
@example({"name": FORGED_RECORD, "submit_line": f"sbatch -J {FORGED_RECORD}"}, 0)
@example({"name": "x\nJobId=9 JobName=x"}, 1)
@example({"name": FORGED_ROW, "account": FORGED_ROW, "reason": FORGED_ROW}, 0)
@example({"comment": f"x\nJobId=7 x\n   JOB_GRES=gpu:4\n{FORGED_NODES}\n   JOB_GRES=gpu:4\n"}, 2)
def test_no_text_changes_another_job(texts: dict[str, str], position: int) -> None:
    jobs = [ANN, BOB]
    jobs.insert(position, PrintedJob(8, "eve", texts=texts, indices=(2,)))
    found = listed(*jobs)
    assert {number: job for number, job in found.items() if number != 8} == EXPECTED
    assert (found[8].user, found[8].cpus, found[8].gpus, found[8].node_list) == ("eve", 1, 1, "gpu1")
    placed = placements(*jobs)
    assert {number: where for number, where in placed.items() if number != 8} == PLACED


def test_a_text_that_imitates_nothing_is_kept_as_it_is() -> None:
    name = "\u202e\u05e9\u05dc\u05d5\u05dd \"x\" 'y' \\ | \u2028State=z\nline"
    (job,) = listed(PrintedJob(8, texts={"name": name, "account": "a|b\nc", "reason": "Priority"})).values()
    assert (job.name, job.account, job.reason) == (name, "a|b\nc", "Priority")


def test_a_job_that_does_not_exist_yet_cannot_be_placed() -> None:
    """Job numbers are easy to guess. The imitated record is there before the job and its own record are."""
    eve = PrintedJob(8, "eve", texts={"name": FORGED_RECORD})
    reader = PlacementReader(lambda number: "")
    assert set(reader.read(print_jobs([eve]), listed(eve).values())) <= {8}


def test_many_imitated_records_cost_a_bounded_number_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    """Each round asks for more of them; each job is asked for once."""
    others = [PrintedJob(number, indices=(0,)) for number in range(1000, 1000 + 250)]
    forged = "".join(f"\nJobId={job.number} x\n   JOB_GRES=gpu:4\n{FORGED_NODES}" for job in others)
    jobs = [PrintedJob(8, "eve", texts={"submit_line": forged}), *others]
    records = {job.number: print_job(job) for job in jobs}
    asked: list[int] = []

    def show_job(number: int) -> str:
        asked.append(number)
        return records[number]

    reader, known = PlacementReader(show_job), listed(*jobs)
    with caplog.at_level(logging.WARNING):
        for requests in (MAX_SINGLE_REQUESTS, 2 * MAX_SINGLE_REQUESTS, 250, 250):
            placed = reader.read(print_jobs(jobs), known.values())
            assert len(asked) == len(set(asked)) == requests
            assert all(placed[number] == PLACED_FIRST for number in asked)
    assert len(caplog.messages) == 1
    assert "1000, 1001" in caplog.messages[0]


PLACED_FIRST = placements(PrintedJob(1, indices=(0,)))[1]


def test_a_request_that_fails_is_repeated_with_the_next_list() -> None:
    jobs = [PrintedJob(8, "eve", texts={"name": FORGED_RECORD}), ANN, BOB]
    answers: list[str] = []

    def show_job(number: int) -> str:
        if not answers:
            raise SourceError("busy")
        return answers.pop()

    reader, known = PlacementReader(show_job), listed(*jobs)
    assert 9 not in reader.read(print_jobs(jobs), known.values())
    answers.append(print_job(BOB))
    assert reader.read(print_jobs(jobs), known.values())[9] == PLACED[9]


def test_a_record_without_gres_is_one_too() -> None:
    """Else the imitation would be the only record of its job, and be believed."""
    bare = "\n".join(line for line in print_job(BOB).split("\n") if "JOB_GRES" not in line)
    eve = PrintedJob(8, "eve", texts={"name": FORGED_RECORD})
    reader = PlacementReader(lambda number: bare)
    assert 9 not in reader.read(print_jobs([eve, ANN]) + bare, listed(eve, ANN, BOB).values())


def test_a_job_that_imitates_its_own_record_is_not_placed() -> None:
    eve = PrintedJob(8, "eve", texts={"name": f"x\n   JOB_GRES=gpu:4\n{FORGED_NODES}"}, indices=(2,))
    assert placements(eve, ANN) == {7: PLACED[7]}


def test_the_clients_are_asked_for_hidden_partitions_too(tmp_path: Path) -> None:
    """And nothing in a command line, which every user can read, is needed to write a record."""
    clients = fake_clients(tmp_path / "bin", "26.05")
    state = (
        SlurmSource(SlurmCommands(str(clients), 60.0), interval=15.0, slow_interval=60.0)
        .read(frozenset())
        .slurm
    )
    assert state is not ABSENT
    calls = (clients / "calls").read_text().splitlines()
    for beginning in ("squeue -a ", "sinfo -a ", "scontrol show job -a -d"):
        assert any(line.startswith(beginning) for line in calls), beginning
    assert {len(line.split("-O ")[1].split(",")) for line in calls if line.startswith("squeue")} == {19}
    # The name of job 21 of the recording imitates job 1, which is then asked for alone.
    assert "scontrol show job -a -d 1" in calls
    assert state.placements is not ABSENT
    assert [gres.indices for gres in state.placements[1][0].gres] == [(0, 1)]
