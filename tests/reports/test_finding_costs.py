"""What findings cost together: on one GPU never more than its time, and of each owner what the report says."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.findings.past_findings import PastFindings, past_findings
from tests.examples import examples
from tests.reports.histories import START_MS, History

HOURS = 5
MINUTES = 60 * HOURS


def read(history: History) -> tuple[PastFindings, dict[str, float]]:
    """Findings of the whole history, and by board what everything that held cost."""

    async def read_all() -> tuple[PastFindings, FindingLedger]:
        ledger = FindingLedger(history.engine())
        now_ms = history.end_ms + 60_000
        await ledger.update(now_ms)
        while await ledger.cover(START_MS, now_ms):
            pass
        return past_findings(
            ledger.windows(START_MS, history.end_ms), START_MS, history.end_ms, fold=False
        ), ledger

    found, ledger = asyncio.run(read_all())
    now = {subject: one.loss for subject, one in ledger.open_stretches().items() if one.loss is not None}
    costs: dict[str, float] = defaultdict(float)
    for subject, loss in now.items():
        costs[subject.uuid] += loss.gpu_seconds / 3600
    return found, costs


def fleet(seed: int) -> History:
    """A shared GPU and one that is cut into MIG instances, with several findings at once."""
    choose = random.Random(seed)
    history = History(minutes=MINUTES)
    board = history.gpu(1, processes=1.0)
    instances = [
        {**board, "gpu": f"1_{number}_0", "uuid": f"MIG-{number}"} for number in range(choose.randint(1, 3))
    ]
    for instance in instances:
        profile = choose.choice(["1g.10gb", "2g.20gb", "?"])
        history.add("gpuscope_mig_info", 1.0, **instance, parent_uuid=board["uuid"], profile=profile)
    places = [history.gpu(0, processes=1.0), *instances]
    for number in range(choose.randint(1, 4)):
        begin, idle = sorted(choose.choices(range(MINUTES), k=2))
        labels = history.process(
            choose.choice(places), str(number), begin=begin, idle_since=idle, program="p",
            user=choose.choice(["ann", "bob", "eve"]), memory_bytes=choose.choice([1e9, 4e9, 4e10]),
        )  # fmt: skip
        if choose.random() < 0.5:
            history.add("gpuscope_process_io_wait_ratio", 0.9, begin, idle + 1, **labels)
    for gpu in (places[0], board):
        history.add("gpuscope_gpu_utilization_minute_ratio", choose.choice([0.0, 0.3, 0.9]), **gpu)
        begin, end = sorted(choose.sample(range(MINUTES), k=2))
        if choose.random() < 0.5:
            history.add("gpuscope_gpu_hung_seconds", ages_from(begin), begin, end, **gpu)
        if choose.random() < 0.5:
            history.add("gpuscope_gpu_clock_hertz", 1e9, **gpu, clock="sm")
            history.add("gpuscope_gpu_clock_max_hertz", 2e9, **gpu, clock="sm")
            history.add("gpuscope_gpu_throttle_reason", 1.0, begin, end, **gpu, reason="hw_thermal_slowdown")
    return history


def ages_from(begin: int) -> Callable[[int], float]:
    return lambda minute: 60.0 * (minute - begin)


@settings(max_examples=examples(6), deadline=None)
@given(st.integers(0, 2**32))
def test_what_findings_cost_is_never_more_than_the_time_of_the_gpus(seed: int) -> None:
    found, now = read(fleet(seed))
    costs = [one.finding.cost_gpu_hours or 0.0 for one in found.findings]
    assert min(costs, default=0.0) >= 0
    assert sum(costs) <= found.coverage.known_gpu_hours + 1e-6
    whole = [one.finding for one in found.findings if set(one.finding.uuids) == {"GPU-n1-0"}]
    assert sum(one.cost_gpu_hours or 0.0 for one in whole) <= HOURS + 1e-6
    assert max(now.values(), default=0.0) <= HOURS + 1e-6


@settings(max_examples=examples(6), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 70)), min_size=1, max_size=4))
def test_owners_of_an_idle_gpu_pay_by_their_memory_as_in_the_report(held: list[tuple[str, int]]) -> None:
    """The agent's counters split the time by memory while nobody works."""
    history = History(minutes=MINUTES)
    gpu = history.gpu(0, processes=float(len(held)))
    memory: dict[str, float] = defaultdict(float)
    for number, (user, gigabytes) in enumerate(held):
        history.process(gpu, str(number), idle_since=0, memory_bytes=1e9 * gigabytes, user=user)
        memory[user] += gigabytes
    found, _ = read(history)
    costs = {one.finding.owner.name: one.finding.cost_gpu_hours for one in found.findings}
    total = sum(memory.values())
    assert costs == {user: pytest.approx(HOURS * part / total, rel=0.01) for user, part in memory.items()}
