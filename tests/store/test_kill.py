"""kill -9 at any moment: every acknowledged sample is present once, without any repair."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tests
from gpuscope.history.store import Store
from tests.store.killed_child import LATE_WIDTH, OPTIONS, STEP, TARGETS, WIDTH, time_of, value_of
from tests.store.support import EVER, NOW, HandClock

ROOT = Path(tests.__file__).parent.parent


Acknowledged = tuple[int, int, str]
"""Tick number, target, and whether it was on time ("now") or late ("late")."""


def run_and_kill(folder: Path, first: int, seconds: float) -> list[Acknowledged]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.killed_child", str(folder), str(first)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )
    assert child.stdout is not None
    out = b""
    try:
        while b" late\n" not in out:  # the time starts after the first tick, on any machine
            got = os.read(child.stdout.fileno(), 65536)
            assert got, "the child exited"
            out += got
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([child.stdout], [], [], left)[0]:
                out += os.read(child.stdout.fileno(), 65536)
    finally:
        child.send_signal(signal.SIGKILL)
        out += child.stdout.read()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
    lines = out[: out.rfind(b"\n")].decode().splitlines()[1:]
    return [(int(number), int(target), when) for number, target, when in (line.split() for line in lines)]


def check_contents(folder: Path, acknowledged: set[Acknowledged], sent_to: int) -> tuple[int, int]:
    """Compare every sample; return the next tick number and the number of merged blocks."""
    clock = HandClock(NOW + (sent_to + 1) * STEP)
    with Store(folder, OPTIONS, clock) as store:
        assert not list(folder.glob("*.damaged*"))
        found = store.select([], *EVER)
        assert len(found) <= TARGETS * WIDTH
        highest = -1
        for series in found:
            named = dict(series.labels)
            target, which = int(named["node"]), int(named["__name__"][1:])
            times = series.timestamps
            assert (np.diff(times) > 0).all(), "a sample is present twice"
            numbers = (times - NOW - target) // STEP
            assert (times == [time_of(int(number), target) for number in numbers]).all()
            assert (series.values == [value_of(int(number), target)[which] for number in numbers]).all()
            when = "now" if which < WIDTH - LATE_WIDTH else "late"
            sent = {number for number, n, how in acknowledged if n == target and how == when}
            lost = sent - set(numbers.tolist())
            assert not lost, f"acknowledged ticks of target {target} are lost: {sorted(lost)[:5]}"
            highest = max(highest, int(numbers[-1]))
        kept = {(n, when) for _, n, when in acknowledged}
        assert len(found) >= sum(LATE_WIDTH if when == "late" else WIDTH - LATE_WIDTH for _, when in kept)
        assert store.check().problems == []
        bundles = store.write_side().db.execute("SELECT count(DISTINCT id >> 32) FROM bundle").fetchone()[0]
        stats = store.stats()
        assert bundles == stats.blocks, "orphans of an unfinished seal or merge remain"
        return highest + 1, stats.merged_blocks


def kill_repeatedly(folder: Path, trials: int, chance: random.Random) -> None:
    acknowledged: set[Acknowledged] = set()
    first = 0
    for _ in range(trials):
        fresh = run_and_kill(folder, first, chance.uniform(0.05, 0.6))
        acknowledged.update(fresh)
        sent_to = max([number for number, _, _ in fresh], default=first) + 1
        first, merged = check_contents(folder, acknowledged, sent_to)
    assert acknowledged
    assert merged, "no block was merged during the trials"
    assert any(when == "late" for _, _, when in acknowledged)


def test_kill_9_loses_and_duplicates_no_acknowledged_sample(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, 6, random.Random(4))


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    for round_number in range(10):
        kill_repeatedly(tmp_path / str(round_number), 10, random.Random(round_number))
