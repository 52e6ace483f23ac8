"""Receipts against simulated jobs whose truth is known; their text at 80 columns, and what reportseff reads."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reportseff.job import Job as ReportseffJob

from gpuscope.base.errors import UsageError
from gpuscope.history.engines.query_engine import EngineInfo
from gpuscope.judge.reports.receipt.job_question import JobNotFound, parse_job
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.receipt.receipt_text import jobstats_summary, receipt_lines, receipt_page
from gpuscope.model.readings import ABSENT
from gpuscope.model.series import Series
from gpuscope.serve.reports.report_answers import job_answer
from tests.goldens import check_golden
from tests.reports.simulated_usage import Layout, Run, SimulatedUsage
from tests.reports.test_usage import SampleEngine

HOUR = 3600
END_MS = 1_790_000_100_000
START = END_MS / 1000 - 6 * HOUR
GIB = float(1 << 30)
UNEVEN = SimulatedUsage(
    end_ms=END_MS,
    seconds=6 * HOUR,
    gpus=5,
    runs=[
        Run("ann", "4711", 0, HOUR, 4 * HOUR, 0.9),
        Run("ann", "4711", 1, HOUR, 4 * HOUR, 0.5),
        Run("ann", "4711", 2, HOUR, 4 * HOUR, 0.0),
        Run("bob", "4712", 3, HOUR, HOUR + 20, 1.0),
        Run("eve", "4713", 4, HOUR, 2 * HOUR, ABSENT, 0),
        Run("kim", "4714", 4, HOUR, 2 * HOUR, ABSENT, 0),
    ],
    layouts=[Layout(4, 0, ("3g.40gb",))],
)


@pytest.fixture(scope="module")
def samples() -> list[Series]:
    simulated = replace(UNEVEN).simulate()
    return [*simulated.series(), *scheduler_series(), *trouble_series()]


def at(metric: str, values: Sequence[tuple[float, float]], **labels: str) -> Series:
    pairs = {"__name__": metric, "instance": "n1:9400", "job": "gpuscope", **labels}
    times = np.array([int(1000 * (START + second)) for second, _ in values], np.int64)
    return Series(tuple(sorted(pairs.items())), times, np.array([value for _, value in values], float))


def every_minute(first: int, last: int, value: float) -> list[tuple[float, float]]:
    return [(second, value) for second in range(first, last, 60)]


def slurm_gave(*indices: str, job: str = "4711", until: int = 4 * HOUR, start: int = HOUR) -> list[Series]:
    """What only the agent that reads Slurm knows: the job's GPUs, used or not, and when it started."""
    head = {"instance": "head:9400", "slurm_job": job}
    span = every_minute(start, until, 1.0)
    return [
        *(
            at("gpuscope_slurm_job_gres_info", span, **head, node="n1", gres="gpu", index=one)
            for one in indices
        ),
        at("gpuscope_slurm_job_start_timestamp_seconds", every_minute(start, until, START + start), **head),
    ]


def scheduler_series() -> list[Series]:
    span = (HOUR, 4 * HOUR)
    return [
        at("gpuscope_job_info", every_minute(*span, 1), slurm_job="4711", user="ann", account="nlp",
           partition="gpu"),
        at("gpuscope_slurm_job_info", every_minute(*span, 1), slurm_job="4711", name="train", user="ann",
           account="nlp", partition="gpu", array_job="4700", array_task="3"),
        at("gpuscope_slurm_job_gpus", every_minute(*span, 3), slurm_job="4711"),
        at("gpuscope_slurm_job_submit_timestamp_seconds", every_minute(*span, START + 600), slurm_job="4711"),
        at("gpuscope_slurm_job_start_timestamp_seconds", every_minute(*span, START + HOUR), slurm_job="4711"),
        at("gpuscope_slurm_job_end_timestamp_seconds", every_minute(*span, START + 25 * HOUR),
           slurm_job="4711"),
    ]  # fmt: skip


def trouble_series() -> list[Series]:
    of_gpu = [
        [
            at("gpuscope_gpu_memory_total_bytes", every_minute(0, 6 * HOUR, 80 * GIB), gpu=str(gpu),
               uuid=f"GPU-{gpu}"),
            at("gpuscope_owner_memory_bytes", every_minute(HOUR, 4 * HOUR, (8 + 4 * gpu) * GIB), gpu=str(gpu),
               uuid=f"GPU-{gpu}", kind="job", name="4711"),
        ]
        for gpu in range(3)
    ]  # fmt: skip
    slowed = [(second, max(0.0, second - 3 * HOUR)) for second in range(0, 4 * HOUR, 60)]
    return [
        *(one for gpu in of_gpu for one in gpu),
        at("gpuscope_gpu_throttled_seconds_total", slowed, uuid="GPU-0", gpu="0", reason="hw_thermal_slowdown"),
        at("gpuscope_gpu_throttled_seconds_total", slowed, uuid="GPU-1", gpu="1", reason="gpu_idle"),
        at("gpuscope_gpu_xid_errors_total", [(2 * HOUR, 1.0), (3 * HOUR, 2.0)], uuid="GPU-1", gpu="1",
           xid="94"),
        at("gpuscope_owner_idle_seconds", [(4 * HOUR - 60, 10740.0)], uuid="GPU-2", gpu="2", kind="job",
           name="4711"),
        at("gpuscope_process_idle_seconds", [(second, second - HOUR) for second in range(HOUR, 4 * HOUR, 60)],
           uuid="GPU-2", gpu="2", pid="72", slurm_job="4711", user="ann"),
    ]  # fmt: skip


def receipt(samples: list[Series], job: str) -> JobReceipt:
    question = parse_job(job, END_MS - 30 * 86_400_000, END_MS)
    return asyncio.run(read_receipt(SampleEngine(samples), question))


def test_a_job_is_what_it_was(samples: list[Series]) -> None:
    found = receipt(samples, "4711")
    assert [(gpu.gpu, round(gpu.held_seconds / HOUR, 2)) for gpu in found.gpus] == [
        ("0", 3),
        ("1", 3),
        ("2", 3),
    ]
    assert [gpu.busy_ratio for gpu in found.gpus] == pytest.approx([0.9, 0.5, 0.0], abs=0.005)
    assert found.gpu_hours == pytest.approx(9, rel=0.005)
    assert found.efficiency == pytest.approx(1.4 / 3, rel=0.005)
    assert found.spread == pytest.approx((0.0, 0.9), abs=0.005)
    assert found.energy_kwh == pytest.approx(9 * 0.4, rel=0.005)
    assert (found.requested_gpus, found.waited_seconds, found.limit_seconds) == (3, HOUR - 600, 24 * HOUR)
    assert (found.user, found.account, found.partition, found.job_name) == ("ann", "nlp", "gpu", "train")
    assert found.longest_idle_seconds == 10740
    assert found.peak_memory_ratio == pytest.approx(0.2)
    assert found.throttled_seconds == {"hw_thermal_slowdown": pytest.approx(HOUR, rel=0.05)}
    assert found.xids == {"94": 2}
    assert not found.running
    assert found.not_known == ["CPU and main memory; `seff 4711` shows them"]


def test_notes_are_at_most_five_each_with_a_command(samples: list[Series]) -> None:
    notes = receipt(samples, "4711").notes
    assert [note.command for note in notes] == [
        "gpuscope explain xid 94",
        "sbatch --gpus=2 …",
        "gpuscope explain throttle hw_thermal_slowdown",
        "sinfo -o '%P %G'",
        "sbatch --time=4:00:00 …",
    ]


def test_a_task_of_an_array_is_found_by_its_name(samples: list[Series]) -> None:
    assert receipt(samples, "4700_3").name == "4711"


def test_a_job_of_20_seconds_has_a_receipt_and_no_notes(samples: list[Series]) -> None:
    found = receipt(samples, "4712")
    assert found.run_seconds == pytest.approx(20)
    assert found.notes == []
    assert "how many GPUs it requested: no agent reads Slurm (docs/slurm.md)" in found.not_known


def test_work_that_is_not_known_is_said_and_not_0(samples: list[Series]) -> None:
    found = receipt(samples, "4713")
    assert found.efficiency is None
    assert found.efficiency_line.startswith("efficiency not known: 1 GPU, 0.21 GPU-hours held")
    assert any("the work of 0.21 GPU-hours" in one for one in found.not_known)


def test_the_time_without_readings_is_said() -> None:
    """The agent was down for an hour of a job with two GPUs; its node was read before and after."""
    down = (2 * HOUR, 3 * HOUR)
    runs = [Run("ann", "4711", gpu, HOUR, 4 * HOUR) for gpu in range(2)]
    simulated = SimulatedUsage(
        END_MS, 6 * HOUR, 2, runs, restarts=[down[1]], gaps=[down], cycle=15, scrape_at=0
    )
    found = receipt(simulated.simulate().series(), "4711")
    assert found.gpu_hours == pytest.approx(4, rel=0.005), "nothing is extrapolated"
    assert found.not_known[0] == "2.0 GPU-hours of its time: the agent was down, or a GPU did not answer"
    whole = receipt(
        SimulatedUsage(END_MS, 6 * HOUR, 2, runs, cycle=15, scrape_at=0).simulate().series(), "4711"
    )
    assert [one for one in whole.not_known if "agent was down" in one or "not read" in one] == []


def test_without_a_prolog_what_slurm_gave_and_nobody_used_is_held() -> None:
    """Two GPUs were given, one was used at 80 % from ten minutes after the start on."""
    runs = [Run("ann", "4711", 0, HOUR + 600, 4 * HOUR, 0.8)]
    series = SimulatedUsage(END_MS, 6 * HOUR, 3, runs, cycle=15, scrape_at=0).simulate().series()
    blind = receipt(series, "4711")
    assert (len(blind.gpus), round(100 * (blind.efficiency or 0))) == (1, 80), "only its processes are known"
    found = receipt([*series, *slurm_gave("0", "1")], "4711")
    assert [(one.gpu, round(one.held_seconds / 60)) for one in found.gpus] == [("0", 180), ("1", 180)]
    assert found.gpu_hours == pytest.approx(6, rel=0.005)
    assert found.busy_hours == pytest.approx(0.8 * 170 / 60, rel=0.005)
    assert found.efficiency == pytest.approx(0.8 * 170 / 360, rel=0.01)
    assert [gpu.busy_ratio for gpu in found.gpus] == pytest.approx([0.8 * 170 / 180, 0.0], rel=0.01)
    assert found.unused_gpus == 0, "no finding says so: which processes GPU 1 had is not known"
    assert [one for one in found.not_known if "not read" in one or "agent was down" in one] == []


@pytest.mark.parametrize("is_read_between", [True, False])
def test_a_job_that_was_requeued_held_nothing_while_it_waited(is_read_between: bool) -> None:
    """It ran for an hour on GPU 0, waited for three, and ran for an hour on GPU 1, both at 100 %. Where Slurm
    was not read while it waited, nobody knows that it did."""
    runs = [Run("ann", "4711", 0, 0, HOUR, 1.0), Run("ann", "4711", 1, 4 * HOUR, 5 * HOUR, 1.0)]
    series = SimulatedUsage(END_MS, 6 * HOUR, 2, runs, cycle=15, scrape_at=0).simulate().series()
    read = every_minute(0, 6 * HOUR, 1.0) if is_read_between else every_minute(0, HOUR, 1.0)
    slurm = [
        *slurm_gave("0", start=0, until=HOUR),
        *slurm_gave("1", start=4 * HOUR, until=5 * HOUR)[:1],
        at("gpuscope_slurm_up", read, instance="head:9400"),
    ]
    found = receipt([*series, *slurm], "4711")
    if is_read_between:
        assert [round(one.held_seconds / 600) for one in found.gpus] == [6, 6]
        assert found.efficiency == pytest.approx(1.0, rel=0.06)
    else:
        assert [round(one.held_seconds / 600) for one in found.gpus] == [30, 24]


def test_a_job_that_never_used_its_gpus_has_a_receipt() -> None:
    series = SimulatedUsage(END_MS, 6 * HOUR, 2, [], cycle=15, scrape_at=0).simulate().series()
    found = receipt([*series, *slurm_gave("1")], "4711")
    assert [(one.gpu, one.busy_seconds) for one in found.gpus] == [("1", 0.0)]
    assert found.gpu_hours == pytest.approx(3, rel=0.02)
    assert found.efficiency == 0.0


def test_a_job_lasts_as_long_as_slurm_says_when_an_agent_restarts() -> None:
    """The agent was down for 69 s of a job of 9:23: sacct says 9:23."""
    length, down = 563, (HOUR + 240, HOUR + 309)
    runs = [Run("ann", "4711", 0, HOUR, HOUR + length)]
    simulated = SimulatedUsage(END_MS, 6 * HOUR, 1, runs, restarts=[down[1]], gaps=[down], cycle=1, scrape_at=0)
    found = receipt([*simulated.simulate().series(), *slurm_gave(start=HOUR, until=HOUR + length)], "4711")
    assert found.seen_seconds < length - 30
    assert found.run_seconds == pytest.approx(length, abs=16)


def test_a_scrape_that_is_missing_is_not_a_gap_of_the_agent() -> None:
    """Its counters go on."""
    missed = (2 * HOUR, 3 * HOUR)
    runs = [Run("ann", "4711", 0, HOUR, 4 * HOUR)]
    simulated = SimulatedUsage(END_MS, 6 * HOUR, 1, runs, gaps=[missed], cycle=15, scrape_at=0)
    found = receipt(simulated.simulate().series(), "4711")
    assert found.gpu_hours == pytest.approx(3, rel=0.005)
    assert [one for one in found.not_known if "agent was down" in one] == []


def test_a_job_that_is_older_than_the_history() -> None:
    runs = [Run("ann", "4711", 0, 0, 4 * HOUR), Run("bob", "", 0, 0, 4 * HOUR, pod="ml/train")]
    series = SimulatedUsage(END_MS, 6 * HOUR, 1, runs, cycle=15, scrape_at=0).simulate().series()
    begin = "2026-09-21T08:15:00Z"
    said = f"what it did before {begin}, if it was there: its GPUs were not read then"
    assert receipt(series, "4711").not_known[0] == receipt(series, "ml/train").not_known[0] == said
    started = [
        at(f"gpuscope_slurm_job_{name}_timestamp_seconds", every_minute(0, 4 * HOUR, value), slurm_job="4711")
        for name, value in (("submit", START - 3 * HOUR), ("start", START - 2 * HOUR))
    ]
    found = receipt([*series, *started], "4711")
    assert found.not_known[0] == f"its first 2.0 h, until {begin}: its GPUs were not read then"
    assert found.run_seconds == pytest.approx(found.seen_seconds + 2 * HOUR, abs=60)


def test_throttling_and_xids_of_a_mig_job_are_those_of_its_gpu(samples: list[Series]) -> None:
    """Until its end, after two hours; its counters are there for five minutes longer."""
    slowed = [(second, max(0.0, second - 1.5 * HOUR)) for second in range(0, 4 * HOUR, 60)]
    of_board = [
        at("gpuscope_gpu_throttled_seconds_total", slowed, uuid="GPU-4", gpu="4", reason="hw_slowdown"),
        at("gpuscope_gpu_xid_errors_total", [(1.5 * HOUR, 1.0), (2 * HOUR + 200, 2.0)], uuid="GPU-4", gpu="4",
           xid="94"),
    ]  # fmt: skip
    found = receipt([*samples, *of_board], "4713")
    assert [gpu.uuid for gpu in found.gpus] == ["MIG-4-0"]
    assert found.throttled_seconds == {"hw_slowdown": pytest.approx(HOUR / 2, rel=0.1)}
    assert found.xids == {"94": 1}


def loads_data(start: int, until: int, busy: float, **owner: str) -> list[Series]:
    """A process on GPU 0 whose workers load data; as long as it has just started, it is not said to wait."""
    gpu = {"gpu": "0", "uuid": "GPU-0"}
    process = {**gpu, "pid": "7", **owner}
    times = every_minute(start, until, 1.0)
    return [
        at("gpuscope_gpu_utilization_minute_ratio", [(second, busy) for second, _ in times], **gpu),
        at("gpuscope_process_age_seconds", [(second, float(second - start)) for second, _ in times], **process),
        at("gpuscope_process_memory_bytes", times, **process),
        at("gpuscope_process_children_cpu_ratio", times, **process),
        at("gpuscope_process_busiest_thread_ratio", times, **process),
    ]


@pytest.mark.parametrize(("busy", "is_named"), [(0.5, True), (0.7, False)])
def test_a_cause_that_the_history_shows_is_named_while_the_gpu_waits(busy: float, is_named: bool) -> None:
    """The same limit as of the finding: below 60 % of utilisation a GPU waits."""
    runs = [Run("ann", "4711", 0, HOUR, 4 * HOUR, busy)]
    simulated = SimulatedUsage(END_MS, 6 * HOUR, 1, runs, cycle=15, scrape_at=0).simulate()
    waits = loads_data(HOUR, 4 * HOUR, busy, slurm_job="4711")
    notes = [note.text for note in receipt([*simulated.series(), *waits], "4711").notes]
    named = r"Its GPUs were busy 50 % of the time; one thread used a whole core 9\d % of the time."
    assert len(notes) == is_named
    assert all(re.fullmatch(named, note) for note in notes)


@pytest.mark.parametrize("text", ["", "/", "ml/", "/pod", "x" * 500])
def test_a_wrong_name_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        parse_job(text, 0, 1)


def test_an_unknown_job_is_said(samples: list[Series]) -> None:
    with pytest.raises(JobNotFound, match="99: the last 30 days of the history have no GPU time of this job"):
        receipt(samples, "99")


@pytest.mark.parametrize(
    ("metric", "state"),
    [
        ("gpuscope_slurm_pending_job_info", r"99: this job waits \(Resources\) and has had no GPU yet"),
        ("gpuscope_slurm_job_info", "99: this job runs, and the history has no GPU of it"),
    ],
)
def test_a_job_without_a_gpu_is_where_slurm_says(samples: list[Series], metric: str, state: str) -> None:
    about = at(metric, every_minute(5 * HOUR, 6 * HOUR, 1.0), slurm_job="99", reason="Resources")
    with pytest.raises(JobNotFound, match=state):
        receipt([*samples, about], "99")


@pytest.mark.parametrize("job", ["4711", "4713"])
def test_the_text_has_80_columns(samples: list[Series], job: str) -> None:
    lines = list(receipt_lines(receipt(samples, job), str))
    assert max(map(len, lines)) <= 80
    check_golden(Path(f"receipts/{job}.txt"), ("\n".join(lines) + "\n").encode())


def test_hostile_names_are_escaped() -> None:
    hostile = JobReceipt("pod", "<b>\x1b[31m", "ml", user="<script>")
    assert "<script>" not in receipt_page(hostile)
    assert "\x1b" not in "\n".join(receipt_lines(hostile, lambda text: text.replace("\x1b", "?")))
    json.dumps(job_answer(hostile))


def test_jobstats_summary(samples: list[Series]) -> None:
    text = jobstats_summary(receipt(samples, "4711"))
    assert text.startswith("JS1:")
    document = json.loads(gzip.decompress(base64.b64decode(text[4:])))
    assert (document["gpus"], document["total_time"]) == (3, 3 * HOUR)
    node = document["nodes"]["n1"]
    assert node["gpu_utilization"] == {"0": 90.0, "1": 50.0, "2": 0.0}, "an unused GPU is 0 %, not left out"
    assert node["gpu_total_memory"]["0"] == 80 * GIB


def test_reportseff_reads_the_summary(samples: list[Series]) -> None:
    """The program whose users have jobstats' comments in Slurm's accounting."""
    job = ReportseffJob("4711", "4711", None)
    job.update(
        {
            "JobID": "4711",
            "JobIDRaw": "4711",
            "State": "COMPLETED",
            "Elapsed": "03:00:00",
            "AdminComment": jobstats_summary(receipt(samples, "4711")),
        }
    )
    assert job.get_entry("GPUEff") == pytest.approx((90 + 50 + 0) / 3, abs=0.1)


class FillingEngine(SampleEngine):
    """Complete until the third hour."""

    async def describe(self) -> EngineInfo:
        return EngineInfo("gpuscope", filled_until_ms=int(1000 * (START + 3 * HOUR)))


def test_a_job_whose_end_is_not_filled_in_yet(samples: list[Series]) -> None:
    question = parse_job("4711", END_MS - 6 * HOUR * 1000, END_MS)
    held = at("gpuscope_owner_gpus_held", [(3 * HOUR, 3.0)], kind="job", name="4711")
    receipt = asyncio.run(read_receipt(FillingEngine([*samples, held]), question))
    assert receipt.running
    assert receipt.not_known[0].key == "unknown.filling"
    assert receipt.gpu_hours == pytest.approx(3 * 2, rel=0.01), "three GPUs for two hours"
    assert not [one for one in receipt.not_known if one.key == "unknown.gaps"]


def test_a_job_that_was_requeued_has_a_receipt_of_its_last_run_and_a_list_of_all() -> None:
    """It ran for an hour at 90 %, waited for three, and ran for an hour at 50 % on another GPU."""
    runs = [Run("ann", "4711", 0, 0, HOUR, 0.9), Run("ann", "4711", 1, 4 * HOUR, 5 * HOUR, 0.5)]
    series = SimulatedUsage(END_MS, 6 * HOUR, 2, runs, cycle=15, scrape_at=0).simulate().series()
    starts = [
        *every_minute(0, HOUR, float(START)),
        *every_minute(4 * HOUR, 5 * HOUR, START + 4.0 * HOUR),
    ]
    submits = [(second, START - 60.0) for second, _ in starts]
    slurm = [
        at("gpuscope_slurm_job_start_timestamp_seconds", starts, slurm_job="4711"),
        at("gpuscope_slurm_job_submit_timestamp_seconds", submits, slurm_job="4711"),
    ]
    found = receipt([*series, *slurm], "4711")
    assert [(run.gpus, round(run.run_seconds / 360), run.efficiency) for run in found.runs] == [
        (1, 10, pytest.approx(0.9, abs=0.02)),
        (1, 10, pytest.approx(0.5, abs=0.02)),
    ]
    assert [gpu.gpu for gpu in found.gpus] == ["1"], "the receipt is of the last run"
    assert found.started_at == START + 4 * HOUR
    assert found.waited_seconds == pytest.approx(3 * HOUR, abs=120), "since the run before"
    text = "\n".join(receipt_lines(found, str))
    assert "runs: 2; this is the last" in text
    assert "<h2>Runs</h2>" in receipt_page(found)
    assert [run["gpus"] for run in job_answer(found)["runs"]] == [1, 1]


@pytest.mark.parametrize(("busy", "is_advised"), [(0.9, False), (0.12, True)])
def test_a_smaller_gpu_is_not_advised_to_a_busy_job(busy: float, is_advised: bool) -> None:
    runs = [Run("ann", "4711", 0, HOUR, 4 * HOUR, busy)]
    series = SimulatedUsage(END_MS, 6 * HOUR, 1, runs, cycle=15, scrape_at=0).simulate().series()
    memory = [
        at("gpuscope_owner_memory_bytes", every_minute(HOUR, 4 * HOUR, 8 * GIB), gpu="0", uuid="GPU-0",
           kind="job", name="4711"),
        at("gpuscope_gpu_memory_total_bytes", every_minute(0, 6 * HOUR, 80 * GIB), gpu="0", uuid="GPU-0"),
    ]  # fmt: skip
    keys = [note.text.key for note in receipt([*series, *memory], "4711").notes]
    assert ("receipt.low_memory" in keys) == is_advised


def test_a_job_between_two_readings_of_slurm_does_not_say_that_nobody_reads_it() -> None:
    runs = [Run("ann", "4711", 0, HOUR, HOUR + 30)]
    series = SimulatedUsage(END_MS, 6 * HOUR, 1, runs, cycle=15, scrape_at=0).simulate().series()
    is_read = at("gpuscope_slurm_up", every_minute(0, 6 * HOUR, 1.0), instance="head:9400")
    keys = [one for one in receipt([*series, is_read], "4711").not_known if "Slurm" in one]
    assert len(keys) == 2
    assert not [one for one in keys if "no agent reads Slurm" in one]
    assert [one for one in receipt(series, "4711").not_known if "no agent reads Slurm" in one]


@pytest.mark.parametrize("waits", [False, True])
def test_a_gpu_that_waits_is_not_called_idle(waits: bool) -> None:
    """Notes say what findings said: one finding explains the other, here as there."""
    runs = [Run("ann", "4711", 0, HOUR, 4 * HOUR, 0.0), Run("ann", "4711", 1, HOUR, 4 * HOUR, 0.9)]
    series = SimulatedUsage(END_MS, 6 * HOUR, 2, runs, cycle=15, scrape_at=0).simulate().series()
    process = {"uuid": "GPU-0", "gpu": "0", "pid": "72", "slurm_job": "4711", "user": "ann"}
    idle = [(second, second - HOUR) for second in range(HOUR, 4 * HOUR, 60)]
    series += [
        at("gpuscope_process_idle_seconds", idle, **process),
        at("gpuscope_process_age_seconds", idle, **process),
        at("gpuscope_process_io_wait_ratio", every_minute(HOUR, 4 * HOUR, 0.9 if waits else 0.0), **process),
        at("gpuscope_gpu_utilization_minute_ratio", every_minute(HOUR, 4 * HOUR, 0.0), uuid="GPU-0", gpu="0"),
    ]
    found = receipt(series, "4711")
    keys = [note.text.key for note in found.notes]
    assert ("receipt.unused" in keys) is not waits
    assert max(gpu.idle_episode_seconds for gpu in found.gpus) == (
        0.0 if waits else pytest.approx(10740, abs=60)
    )
    assert found.wait_shares.get("waits_for_disk", 0.0) == pytest.approx(0.95 if waits else 0.0, abs=0.06)
