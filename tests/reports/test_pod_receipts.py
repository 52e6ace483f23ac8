"""Receipts of pods, names that several have, and what `/api/job` answers when it has no receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import Limits
from gpuscope.history.engines.query_engine import EngineFailed
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.checks.checks import CHECKS, explaining_first
from gpuscope.judge.reports.findings.finding_windows import Window, read_windows
from gpuscope.judge.reports.receipt.job_question import JobNotFound, parse_job
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.receipt.receipt_text import receipt_lines
from gpuscope.model.series import Series
from gpuscope.serve.http.messages import Router
from gpuscope.serve.reports.report_routes import ReportThreads, report_routes
from tests.goldens import check_golden
from tests.reports.simulated_usage import Run, SimulatedUsage
from tests.reports.test_receipts import END_MS, GIB, HOUR, at, every_minute, loads_data
from tests.reports.test_usage import SampleEngine
from tests.server.client import Client

START_MS = END_MS - 30 * 86_400_000
SPAN = (HOUR, 3 * HOUR)


def pod_series() -> list[Series]:
    runs = [
        Run("root", "", 0, *SPAN, 0.1, pod="ml/train-0"),
        Run("root", "", 1, *SPAN, 0.2, pod="ml/train-0"),
        Run("root", "", 2, *SPAN, 0.9, pod="ml/chat"),
        Run("root", "", 3, *SPAN, 0.9, pod="prod/chat"),
        Run("ann", "4801", 4, *SPAN, 0.5),
        Run("ann", "4802", 5, *SPAN, 0.5),
    ]
    simulated = SimulatedUsage(END_MS, 6 * HOUR, gpus=6, runs=runs, cycle=15, scrape_at=0).simulate()
    pod = {"namespace": "ml", "pod": "train-0"}
    array = {"array_job": "4800", "user": "ann"}
    more = [
        *(
            at("gpuscope_allocation_used", every_minute(*SPAN, 1), gpu=str(gpu), uuid=f"GPU-{gpu}", **pod)
            for gpu in range(3)
        ),
        at("gpuscope_owner_memory_bytes", every_minute(*SPAN, 40 * GIB), gpu="0", uuid="GPU-0", kind="pod",
           name="train-0", namespace="ml"),
        at("gpuscope_gpu_memory_total_bytes", every_minute(0, 6 * HOUR, 80 * GIB), gpu="0", uuid="GPU-0"),
        *loads_data(SPAN[0], 2 * HOUR, 0.1, **pod),
        at("gpuscope_slurm_job_info", every_minute(*SPAN, 1), slurm_job="4801", array_task="1", **array),
        at("gpuscope_slurm_job_info", every_minute(*SPAN, 1), slurm_job="4802", array_task="2", **array),
    ]  # fmt: skip
    return [*simulated.series(), *more]


@pytest.fixture(scope="module")
def samples() -> list[Series]:
    return pod_series()


def receipt(samples: Sequence[Series], name: str) -> JobReceipt:
    return asyncio.run(read_receipt(SampleEngine(samples), parse_job(name, START_MS, END_MS)))


@pytest.mark.parametrize("name", ["ml/train-0", "train-0"])
def test_a_pod_is_what_it_was(samples: list[Series], name: str) -> None:
    found = receipt(samples, name)
    assert (found.kind, found.namespace, found.name) == ("pod", "ml", "train-0")
    assert found.gpu_hours == pytest.approx(4, rel=0.005)
    assert [gpu.busy_ratio for gpu in found.gpus] == pytest.approx([0.1, 0.2], abs=0.005)
    assert found.energy_kwh == pytest.approx(4 * 0.4, rel=0.005)
    assert found.requested_gpus == 3
    assert found.peak_memory_ratio == pytest.approx(0.5)
    assert found.not_known == ["CPU and main memory; `kubectl top pod` shows them"]


def test_the_text_of_a_pod(samples: list[Series]) -> None:
    lines = list(receipt_lines(receipt(samples, "ml/train-0"), str))
    assert max(map(len, lines)) <= 80
    check_golden(Path("receipts/pod.txt"), ("\n".join(lines) + "\n").encode())


def test_a_cause_is_named_only_if_the_history_shows_it(samples: list[Series]) -> None:
    shown = receipt(samples, "ml/train-0").notes[0]
    assert "one thread used a whole core 4" in shown.text, "of two hours one, without its start"
    plain = [one for one in samples if "busiest_thread" not in dict(one.labels)["__name__"]]
    assert receipt(plain, "ml/train-0").notes[0].text == "Its GPUs were busy 15 % of the time."


def test_a_name_that_several_have_is_refused_with_a_choice(samples: list[Series]) -> None:
    with pytest.raises(UsageError, match=r"chat is a pod of 2 namespaces; .*: ml/chat, prod/chat"):
        receipt(samples, "chat")
    with pytest.raises(UsageError, match=r"4800 is an array of 2 tasks; .*: 4800_1, 4800_2"):
        receipt(samples, "4800")
    assert receipt(samples, "4800_2").name == "4802"
    assert receipt(samples, "prod/chat").gpu_hours == pytest.approx(2, rel=0.005)


class LedgerOfServer:
    """Reads in the event loop of the server, as far as its ledger has read."""

    def __init__(self, samples: Sequence[Series], known_from_ms: int) -> None:
        self._engine = SampleEngine(samples)
        self._known_from_ms = known_from_ms
        self.asked: list[tuple[int, int]] = []

    async def windows(self, start_ms: int, end_ms: int) -> Sequence[Window]:
        self.asked.append((start_ms, end_ms))
        checks = explaining_first(CHECKS.values())
        return await read_windows(self._engine, checks, max(start_ms, self._known_from_ms), end_ms)


class NoChecks(SampleEngine):
    """Whoever evaluates a check over it fails."""

    async def range(self, expression: str, *times: Any, **limits: Any) -> Matrix:
        assert expression not in {check.promql for check in CHECKS.values()}
        return await super().range(expression, *times, **limits)


def test_a_server_reads_the_notes_from_its_ledger(samples: list[Series]) -> None:
    ledger = LedgerOfServer(samples, START_MS)
    threads = ReportThreads(lambda: NoChecks(samples), Limits())
    routes = report_routes(threads, Limits(), lambda: END_MS / 1000, ledger.windows)
    with Client(Router(routes)) as client:
        answer = client.get("/api/job?id=ml/train-0").json()
    assert answer["notes"][0]["key"] == "receipt.low.waits_for_data"
    ((start_ms, end_ms),) = ledger.asked
    assert end_ms - start_ms == pytest.approx(2 * HOUR * 1000, abs=60_000)
    assert "missing.unread" not in {sentence["key"] for sentence in answer["not_known_keys"]}


def test_hours_that_the_ledger_has_not_read_are_said(samples: list[Series]) -> None:
    ledger = LedgerOfServer(samples, END_MS - 4 * HOUR * 1000)  # of two hours, the second
    question = parse_job("ml/train-0", START_MS, END_MS)
    found = asyncio.run(read_receipt(NoChecks(samples), question, ledger.windows))
    assert "receipt.low" in [note.text.key for note in found.notes], "no cause is known"
    (unread,) = [one for one in found.not_known if one.key == "missing.unread"]
    assert unread.args["hours"] == pytest.approx(1, abs=0.02)


def test_a_check_that_the_engine_refuses_is_said(samples: list[Series]) -> None:
    class Refusing(SampleEngine):
        async def range(self, expression: str, *times: Any, **limits: Any) -> Matrix:
            if expression == CHECKS["waits_for_data"].promql:
                raise EngineFailed("too many samples")
            return await super().range(expression, *times, **limits)

    question = parse_job("ml/train-0", START_MS, END_MS)
    found = asyncio.run(read_receipt(Refusing(samples), question))
    (refused,) = [one for one in found.not_known if one.key == "missing.kind"]
    assert refused.args["kind"] == "waits_for_data"


def ask(samples: Sequence[Series], query: str) -> tuple[int, str]:
    threads = ReportThreads(lambda: SampleEngine(samples), Limits())
    client = Client(Router(report_routes(threads, Limits(), lambda: END_MS / 1000)))
    answer = client.get(f"/api/job?{query}")
    return answer.status_code, answer.json().get("error", "")


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("id=99", 404, "99: the last 30 days of the history have no GPU time of this job"),
        ("id=nobody", 404, "nobody: the last 30 days of the history have no GPU time of this pod"),
        ("id=chat", 400, "ask for one of them: ml/chat, prod/chat"),
        ("id=4800", 400, "ask for one of them: 4800_1, 4800_2"),
        ("", 400, "'' is neither a job number nor NAMESPACE/POD"),
        ("id=ml/", 400, "'ml/' is neither"),
        ("id=" + "9" * 5000, 400, "is neither a job number"),
        ("id=%22%7D%20or%20up%7Bx%3D%22", 404, "have no GPU time of this pod"),
        ("id=ml/%22%7D%0A%00", 404, "have no GPU time of this pod"),
        ("id=4711&since=soon", 400, "since: 'soon' is not a duration"),
        ("id=4711&format=xml", 400, "format: 'xml' is not one of json, html"),
        ("id=1&id=2", 400, "id is given 2 times"),
    ],
)
def test_what_the_api_cannot_answer(samples: list[Series], query: str, status: int, words: str) -> None:
    found = ask(samples, query)
    assert found[0] == status
    assert words in found[1]
    assert len(found[1]) < 1000


def test_a_history_without_owners_does_not_say_that_the_job_held_nothing(samples: list[Series]) -> None:
    boards = [one for one in samples if "_owner_" not in dict(one.labels)["__name__"]]
    status, words = ask(boards, "id=4801")
    assert status == 404
    assert "have no gpuscope_owner_held_seconds_total: no agent, or one of an older version, wrote it" in words
    with pytest.raises(JobNotFound):
        receipt(boards, "train-0")
