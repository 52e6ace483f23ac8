"""A range that is over has the same sums however often it is asked: GPUs that appear later change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store
from gpuscope.judge.reports.usage.usage import parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.model.series import Series
from tests.judgement.scrapes import scrape
from tests.judgement.situation import Situation, load_situation
from tests.judgement.test_situations import InlineExecutor, append
from tests.judgement.verdicts import Server
from tests.store.support import HandClock

CLOSED_SECONDS = 2 * 3600.0
BEFORE = """\
# Ron works on one GPU, job 51 of Sue leaves one idle; the first two hours are asked again later.
lasts: 4h
nodes: {n1: 3, n2: 2}
jobs:
  - {job: 50, user: ron, gpus: n1/0}
  - {job: 51, user: sue, gpus: n1/1}
processes:
  - {gpu: n1/0, user: ron, job: 50, sm: 0.5}
  - {gpu: n1/1, user: sue, job: 51, sm: "0.9 until 30m, 0"}
"""
NODE_LATER = """\
  - {gpu: n2/0, user: tom, sm: 0.9, from: 2h30m}
events:
  - {scrape_gap: n2, to: 2h30m}
  - {agent_restarts: n2, at: 2h30m}
"""
CARD_LATER = """\
  - {gpu: n1/2, user: tom, sm: 0.9, from: 2h30m}
events:
  - {swapped: n1/2, at: 2h30m}
  - {scrape_gap: n2, to: 4h}
"""
INSTANCES_LATER = """\
events:
  - {mig: n1/2, at: 2h30m, profiles: [3g.40gb, 3g.40gb]}
  - {scrape_gap: n2, to: 4h}
"""


def cut(history: Sequence[Series], at_ms: int) -> tuple[list[Series], list[Series]]:
    """The samples until a time, and those after it."""
    parts: tuple[list[Series], list[Series]] = [], []
    for series in history:
        number = int(np.searchsorted(series.timestamps, at_ms, side="right"))
        for part, kept in zip(parts, (slice(None, number), slice(number, None)), strict=True):
            if len(series.timestamps[kept]):
                part.append(Series(series.labels, series.timestamps[kept], series.values[kept]))
    return parts


def sums(server: Server, end: float) -> dict[str, Any]:
    """Of the range from the start to `end`."""
    found: dict[str, Any] = {}
    for by in ("user", "job", "node", "model"):
        question = UsageQuestion(
            parse_grouping(by), int(server.start * 1000), int(end * 1000), source="samples"
        )
        report = asyncio.run(usage_report(server.new_engine(), question))
        rows = {row.names: (row.held, row.busy, row.idle_held) for row in report.rows}
        parts = report.invariant
        found[by] = rows, parts.gpu_hours, parts.owners, parts.unattributed, parts.free, parts.lost
    server.read_history()
    found["findings"] = sorted(
        (one.kind, sorted(one.uuids), one.since, one.gpu_hours or 0.0)
        for one in server.findings_between(server.start, end)
    )
    return found


@pytest.mark.parametrize("later", [NODE_LATER, CARD_LATER, INSTANCES_LATER], ids=["node", "card", "instances"])
def test_new_gpus_do_not_change_a_closed_range(later: str, tmp_path: Path) -> None:
    path = tmp_path / "later.yml"
    path.write_text(BEFORE + later + "expect: {}\n")
    situation: Situation = load_situation(path)
    closed = situation.start + CLOSED_SECONDS
    # Samples of ten minutes more: a range is complete when its end is a minute old.
    known, new = cut(scrape(situation).series, int((closed + 600) * 1000))
    assert {dict(one.labels).get("uuid", "") for one in new} > {
        dict(one.labels).get("uuid", "") for one in known
    }, "GPUs appear later"
    with Store(tmp_path / "store", clock=HandClock(round(situation.end * 1000))) as store:
        evaluator, executor = Engine(store), InlineExecutor()
        server = Server(lambda: EmbeddedEngine(store, evaluator, executor), situation.start, closed + 600)
        append(store, known)
        before = sums(server, closed)
        assert [kind for kind, _, _, _ in before["findings"]] == ["held_idle"]
        append(store, new)
        server.move_to(situation.end)
        assert sums(server, closed) == before
        fresh = Server(lambda: EmbeddedEngine(store, evaluator, executor), situation.start, situation.end)
        assert sums(fresh, closed) == before, "also by a server that starts later"
