"""Simulated nodes in turns: each gets its turn, one failing or stopping holds nothing up."""

from __future__ import annotations

import threading

from gpuscope.cli.wiring.demo import build_demo
from gpuscope.cli.wiring.run_up import RoundRobin
from gpuscope.model.readings import Snapshot
from tests.fakes import make_settings


def test_every_node_gets_its_turn_and_all_threads_end() -> None:
    before = threading.active_count()
    demo = build_demo(make_settings(source="demo", demo_nodes=3, demo_gpus=1, interval=0.05))
    rounds = threading.Semaphore(0)
    for collector in demo.collectors:
        collector.subscribe(lambda snapshot: rounds.release())
    running = RoundRobin(demo.collectors, 0.05)
    running.start()
    try:
        for _ in range(9):
            assert rounds.acquire(timeout=30)
        ticks = [collector.ticks for collector in demo.collectors]
        assert min(ticks) >= 2
        assert max(ticks) - min(ticks) <= 1
    finally:
        running.stop()
    assert threading.active_count() == before


def test_a_listener_that_fails_costs_no_other_node_its_turn() -> None:
    demo = build_demo(make_settings(source="demo", demo_nodes=2, demo_gpus=1, interval=0.05))
    seen = threading.Semaphore(0)

    def fail(snapshot: Snapshot) -> None:
        raise OSError("no disk")

    demo.collectors[0].subscribe(fail)
    demo.collectors[1].subscribe(lambda snapshot: seen.release())
    running = RoundRobin(demo.collectors, 0.05)
    running.start()
    try:
        for _ in range(3):
            assert seen.acquire(timeout=30)
    finally:
        running.stop()
