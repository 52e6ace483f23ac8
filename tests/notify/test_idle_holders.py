"""Whose idle times the idle policy reads from an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuscope.engines.embedded_engine import EmbeddedEngine
from gpuscope.notify.idle_policy.idle_holders import read_idle_holders
from gpuscope.promql import Engine
from gpuscope.store import Store
from tests.store.support import HandClock, tick


@pytest.mark.parametrize(("seconds", "is_read"), [(0, True), (179, True), (181, False), (290, False)])
def test_an_idle_time_counts_for_three_minutes(tmp_path: Path, seconds: int, is_read: bool) -> None:
    """An engine shows it for five: meanwhile the job may have worked."""
    clock = HandClock()
    job = {
        "__name__": "gpuscope_owner_idle_seconds", "kind": "job", "name": "17", "instance": "n1", "gpu": "0",
        "uuid": "GPU-1",
    }  # fmt: skip
    with Store(tmp_path, clock=clock) as store:
        target = store.target("n1")
        series = store.resolve(target, [tuple(sorted(job.items()))])
        store.append(tick(target, clock.at, series, [7200.0]))
        engine = EmbeddedEngine(store, Engine(store))
        reading = asyncio.run(read_idle_holders(engine, clock.at + seconds * 1000, lambda labels: True))
    assert [holder.longest_idle for holder in reading.holders] == ([7200.0] if is_read else [])
