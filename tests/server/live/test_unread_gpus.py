"""A node whose agent answers while its driver does not keeps its GPUs, stale since they were last read."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gpuscope.judge.checks.facts import Missing, Sample
from gpuscope.serve.live.gone_nodes import UnreadGpus
from tests.server.live.pictures import fleet_state
from tests.server.live.test_gone_nodes import HOUR, START, History, agent_info, gpu_info, history, plain

__all__ = ["history"]

BLOCKED = START + HOUR


def now_samples(at: float, *, nvml_up: float, gpus: int = 0) -> list[Sample]:
    return [
        ("gpuscope_agent_info", agent_info("a:1"), 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", plain("", "a:1"), at),
        ("gpuscope_source_up", {**plain("", "a:1"), "source": "nvml"}, nvml_up),
        *(("gpuscope_gpu_info", gpu_info("a:1", index), 1.0) for index in range(gpus)),
    ]


def look(history: History, at: float, samples: list[Sample]) -> Missing:
    return asyncio.run(UnreadGpus(history.ask, clock=lambda: at).find_missing(samples))


@pytest.mark.parametrize("later", [30, 6 * HOUR])
def test_gpus_nobody_reads_are_stale_since_the_last_reading(history: History, later: int) -> None:
    history.node("a:1", BLOCKED)
    history.write(BLOCKED, BLOCKED + later, agent_info("a:1"))
    at = BLOCKED + later
    samples = now_samples(at, nvml_up=0)
    state = fleet_state(samples, now=at, source="t", missing=look(history, at, samples))
    assert [(gpu["gpu"], gpu["state"], gpu["model"]) for gpu in state["gpus"]] == [
        ("0", "stale", "H100"),
        ("1", "stale", "H100"),
    ]
    assert all(BLOCKED - 120 <= gpu["since"] <= BLOCKED for gpu in state["gpus"])
    assert not any("busy" in gpu or "power" in gpu for gpu in state["gpus"]), "no number of theirs is known"


def test_it_ages_out_after_a_day(history: History) -> None:
    history.node("a:1", BLOCKED)
    at = BLOCKED + 25 * HOUR
    assert look(history, at, now_samples(at, nvml_up=0)).unread == {}


@pytest.mark.parametrize(("nvml_up", "gpus"), [(1.0, 2), (0.0, 2), (1.0, 0)])
def test_gpus_that_are_read_and_nodes_without_trouble_are_not_looked_up(
    history: History, nvml_up: float, gpus: int
) -> None:
    history.node("a:1", BLOCKED)
    assert look(history, BLOCKED + 60, now_samples(BLOCKED + 60, nvml_up=nvml_up, gpus=gpus)) == Missing(
        samples=[]
    )


def test_a_node_that_never_had_a_gpu_has_none(history: History) -> None:
    history.write(START, BLOCKED, agent_info("a:1"))
    assert look(history, BLOCKED, now_samples(BLOCKED, nvml_up=0)) == Missing(samples=[])


def test_a_history_that_cannot_be_asked_takes_nothing_else_away(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        raise OSError("no route to host")

    async def look_twice() -> Missing:
        watch = UnreadGpus(broken, clock=lambda: START)
        await watch.find_missing(now_samples(START, nvml_up=0))
        return await watch.find_missing(now_samples(START, nvml_up=0))

    caplog.set_level(logging.WARNING, "gpuscope.live")
    assert asyncio.run(look_twice()) == Missing(samples=[])
    assert [record.getMessage() for record in caplog.records] == [
        "GPUs that are not read cannot be looked up: no route to host"
    ]
