"""Which job or pod a receipt is for: a job number, a task of an array, or a pod with or without namespace.

`find_job` looks the name up in the history: a task of an array has a job number of its own, and a pod's name
may exist in several namespaces. What is not there raises JobNotFound, what is ambiguous UsageError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.base.go_quote import quote
from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.reports.receipt.job_receipt import JobKind
from gpuscope.judge.reports.report_range import DAY_MS, MINUTE_MS

HELD_SECONDS: Final = "gpuscope_owner_held_seconds_total"
MAX_NAME: Final = 400
MAX_NAMED: Final = 5
MAX_RUN_POINTS: Final = 10_000
MAX_RUNS: Final = 20
MIN_RUN_SECONDS: Final = 30.0
"""Two starts that differ by less are one."""


class JobNotFound(UsageError):
    """The history has nothing of the job."""


@dataclass(frozen=True, slots=True)
class JobQuestion:
    kind: JobKind
    name: str
    namespace: str
    start_ms: int
    end_ms: int
    array_tasks: tuple[str, ...] = ()
    """Of a job number that is an array's too: all tasks, `4711_3`."""

    @property
    def matchers(self) -> str:
        """Of its accounts."""
        namespace = f",namespace={quote(self.namespace)}" if self.kind == "pod" and self.namespace else ""
        return f'kind="{self.kind}",name={quote(self.name)}{namespace}'

    @property
    def process_matchers(self) -> str:
        """Of its processes and allocations."""
        if self.kind == "pod":
            return f"pod={quote(self.name)},namespace={quote(self.namespace)}"
        return f"slurm_job={quote(self.name)}"

    def is_owner(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels of a process, an allocation or a finding name it."""
        if self.kind == "pod":
            return (labels.get("pod", ""), labels.get("namespace", "")) == (self.name, self.namespace)
        return labels.get("slurm_job", "") == self.name

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def parse_job(text: str, start_ms: int, end_ms: int, origin: str = "gpuscope job") -> JobQuestion:
    """`4711`, `4711_3`, `NAMESPACE/POD` or `POD`."""
    namespace, slash, name = text.rpartition("/")
    if not text.strip() or (slash and not (namespace and name)) or len(text) > MAX_NAME:
        raise UsageError(f"{origin}: {text[:MAX_NAME]!r} is neither a job number nor NAMESPACE/POD")
    if slash:
        return JobQuestion("pod", name, namespace, start_ms, end_ms)
    is_number = text.replace("_", "", 1).isdecimal()
    return JobQuestion("job" if is_number else "pod", text, "", start_ms, end_ms)


async def find_job(engine: QueryEngine, question: JobQuestion) -> JobQuestion:
    """The question by the name that the history has."""
    if question.kind == "pod":
        return question if question.namespace else await _with_namespace(engine, question)
    question = await _with_task_number(engine, question)
    tasks = await _array_tasks(engine, question)
    if len(tasks) > 1 and not await _accounts(engine, question):
        raise UsageError(
            f"{question.name} is an array of {len(tasks)} tasks; ask for one of them: {_some(tasks)}"
        )
    return replace(question, array_tasks=tasks)


async def find_later_runs(engine: QueryEngine, question: JobQuestion) -> list[int]:
    """When the second and later runs began, in milliseconds: of a job that Slurm started again, or of a pod
    that was created again with the same name. Only what the history proves: processes may come and go."""
    step_ms = max(MINUTE_MS, (question.end_ms - question.start_ms) // MAX_RUN_POINTS)
    span = question.start_ms, question.end_ms, step_ms
    of_job = question.process_matchers
    if question.kind == "job":
        started = f"gpuscope_slurm_job_start_timestamp_seconds{{{of_job}}}"
        found = await engine.range(f"max(last_over_time({started}[{duration_text(step_ms)}]))", *span)
        times = sorted(set(found.values[0][found.present[0]].tolist())) if found.labels else []
        begins = [round(1000 * late) for early, late in pairwise(times) if late - early > MIN_RUN_SECONDS]
    else:
        processes = f"gpuscope_process_memory_bytes{{{of_job}}}"
        found = await engine.range(
            f"count by (program) (gpuscope_process_info and on (instance, uuid, pid) {processes})", *span
        )
        first_ms: dict[str, int] = {}
        for labels, present in zip(found.labels, found.present, strict=True):
            uid = dict(labels).get("program", "").rpartition("/")[0]
            if uid and uid != question.text and present.any():
                at_ms = int(found.times_ms[int(present.argmax())]) - step_ms
                first_ms[uid] = min(at_ms, first_ms.get(uid, at_ms))
        begins = sorted(first_ms.values())[1:]
    return [begin_ms for begin_ms in begins if question.start_ms < begin_ms < question.end_ms][-MAX_RUNS:]


async def not_found(engine: QueryEngine, question: JobQuestion) -> JobNotFound:
    days = (question.end_ms - question.start_ms) / DAY_MS
    if not await engine.label_values("kind", [HELD_SECONDS], question.start_ms, question.end_ms):
        return JobNotFound(
            f"{question.text}: the last {days:.3g} days of the history have no {HELD_SECONDS}: "
            "no agent, or one of an older version, wrote it"
        )
    if question.kind == "job" and (state := await _state_in_slurm(engine, question)):
        return JobNotFound(f"{question.text}: {state}")
    return JobNotFound(
        f"{question.text}: the last {days:.3g} days of the history have no GPU time of this {question.kind}; "
        "check the name, or give a longer --since"
    )


async def _state_in_slurm(engine: QueryEngine, question: JobQuestion) -> str:
    """What Slurm says of a job that has had no GPU; empty if Slurm is not read or does not know it."""
    matcher = f"slurm_job={quote(question.name)}"
    waiting = await engine.instant(f"gpuscope_slurm_pending_job_info{{{matcher}}}", question.end_ms)
    if waiting.labels:
        return f"this job waits ({dict(waiting.labels[0]).get('reason', '')}) and has had no GPU yet"
    if (await engine.instant(f"gpuscope_slurm_job_info{{{matcher}}}", question.end_ms)).labels:
        return "this job runs, and the history has no GPU of it: it has none, or no agent reads its nodes"
    return ""


async def _accounts(engine: QueryEngine, question: JobQuestion) -> list[dict[str, str]]:
    selector = f"{HELD_SECONDS}{{{question.matchers}}}"
    found = await engine.series([selector], question.start_ms, question.end_ms)
    return [dict(labels) for labels in found]


async def _with_namespace(engine: QueryEngine, question: JobQuestion) -> JobQuestion:
    accounts = await _accounts(engine, question)
    namespaces = sorted({labels.get("namespace", "") for labels in accounts})
    if not namespaces:
        raise await not_found(engine, question)
    if len(namespaces) > 1:
        raise UsageError(
            f"{question.name} is a pod of {len(namespaces)} namespaces; ask for one of them: "
            + _some([f"{namespace}/{question.name}" for namespace in namespaces])
        )
    return replace(question, namespace=namespaces[0])


async def _with_task_number(engine: QueryEngine, question: JobQuestion) -> JobQuestion:
    """A task of an array has a number of its own: 4711_3 is job 4715, say."""
    array, underscore, task = question.name.partition("_")
    if not underscore:
        return question
    selectors = [
        f"gpuscope_slurm_job_info{{array_job={quote(array)},array_task={quote(task)}}}",
        f"gpuscope_job_info{{array={quote(question.name)}}}",
    ]
    for labels in await engine.series(selectors, question.start_ms, question.end_ms):
        number = dict(labels).get("slurm_job", "")
        if number:
            return replace(question, name=number)
    return question


async def _array_tasks(engine: QueryEngine, question: JobQuestion) -> tuple[str, ...]:
    selector = f"gpuscope_slurm_job_info{{array_job={quote(question.name)}}}"
    found = await engine.series([selector], question.start_ms, question.end_ms)
    numbers = {task for labels in found if (task := dict(labels).get("array_task", ""))}
    return tuple(f"{question.name}_{task}" for task in sorted(numbers, key=lambda one: (len(one), one)))


def _some(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
