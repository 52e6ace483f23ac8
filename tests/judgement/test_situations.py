"""Every situation is judged right: now, over time, by alerts, in hours, receipts and the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, Tick
from gpuscope.model.series import Series
from tests.judgement.comparison import down_targets, judge
from tests.judgement.scrapes import ScrapedHistory, scrape
from tests.judgement.situation import (
    FOLDER,
    Situation,
    load_situation,
)
from tests.judgement.verdicts import Server
from tests.store.support import HandClock

T = TypeVar("T")
FILES = sorted(FOLDER.glob("*.yml"))


class InlineExecutor(Executor):
    """A query of a small history takes less time than a change of threads."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def judge_in_store(situation: Situation, history: ScrapedHistory, folder: Path) -> list[str]:
    with Store(folder / "store", clock=HandClock(round(situation.end * 1000))) as store:
        append(store, history.series)
        evaluator, executor = Engine(store), InlineExecutor()
        server = Server(lambda: EmbeddedEngine(store, evaluator, executor), situation.start, situation.end)
        if history.late:
            server.findings_now(down_targets(situation))  # somebody looks while samples are missing
            server.findings_over_time()
            append(store, history.late)
        return judge(situation, server, folder / "policy")


def append(store: Store, history: Sequence[Series]) -> None:
    target = store.target("scrapes")
    ids = store.resolve(target, [one.labels for one in history])
    times = np.concatenate([one.timestamps for one in history])
    order = np.argsort(times, kind="stable")
    series = np.repeat(ids, [len(one.values) for one in history])[order]
    values = np.concatenate([one.values for one in history])[order]
    store.append(Tick(target, int(times.max()), series, values, times[order]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_is_judged_right(path: Path, tmp_path: Path) -> None:
    situation = load_situation(path)
    wrong = judge_in_store(situation, scrape(situation), tmp_path)
    assert not wrong, "\n".join((situation.why, *wrong))


def test_the_corpus_is_large_and_mostly_innocent() -> None:
    situations = [load_situation(path) for path in FILES]
    silent = [one.name for one in situations if one.expected.is_silent]
    assert len(situations) >= 150
    assert 2 * len(silent) >= len(situations), len(silent)


def test_every_fault_of_the_review_has_situations() -> None:
    numbers = {path.stem.partition("-")[0] for path in FILES}
    assert {f"a{number:02}" for number in range(1, 20)} <= numbers
