"""Measures the live picture over the embedded store: CPU time, size and distance of its updates.

Fills a store with scrapes of simulated nodes of eight GPUs (600 series each, every 15 s). Before each picture,
the nodes of a second are scraped again, which is not measured. CPU time is that of the process, so other work
on the machine matters little.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from benchmarks.measure import machine, table
from benchmarks.simulated_nodes import EVERY_SECONDS, make_texts
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.history.store.tick import Int64s
from gpuscope.model.exposition.parser import parse_once
from gpuscope.model.series import Labels
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.picture_differences import difference, to_tables
from gpuscope.serve.live.stored_samples import StoreSamples

TICKS = 4
PICTURES = 20
_SNAPSHOT = ("__name__", "gpuscope_agent_snapshot_timestamp_seconds")
_MARK = b"@@@@@@"


class SimulatedScrapes:
    """Ticks of simulated nodes for a store."""

    def __init__(self, store: Store, nodes: int) -> None:
        self._store, self.nodes = store, nodes
        self._bodies = [
            {pairs: value for pairs, _, value in parse_once(body.decode())}
            for body in make_texts(TICKS).bodies(_MARK)
        ]
        self._series: dict[tuple[int, int], Int64s] = {}
        self._next = 0

    def fill(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for node in range(self.nodes):
            for number in range(TICKS):
                self._append(node, number, now_ms - 1000 * EVERY_SECONDS * (TICKS - number) - node % 10_000)

    def scrape_next(self, count: int) -> None:
        """Scrapes the next nodes, in turns."""
        for _ in range(count):
            turn, node = divmod(self._next, self.nodes)
            self._append(node, turn % TICKS, time.time_ns() // 1_000_000)
            self._next += 1

    def _append(self, node: int, number: int, at_ms: int) -> None:
        name, values = f"{node:06x}", self._bodies[number]
        target = self._store.target(f"node-{name}")
        if (node, number) not in self._series:
            self._series[node, number] = self._store.resolve(target, (_labels(pairs, name) for pairs in values))
        fresh = [at_ms / 1000 if _SNAPSHOT in pairs else value for pairs, value in values.items()]
        self._store.append(Tick(target, at_ms, self._series[node, number], np.array(fresh)))


def _labels(pairs: Labels, name: str) -> Labels:
    own = [(label, text.replace(_MARK.decode(), name)) for label, text in pairs]
    return tuple(sorted([*own, ("instance", f"node-{name}"), ("job", "gpu")]))


@dataclass(frozen=True)
class Update:
    """One picture and what viewers get of it."""

    picture_seconds: float
    difference_seconds: float
    bytes_sent: int


async def measure(store: Store, scrapes: SimulatedScrapes) -> tuple[list[Update], float, int]:
    """The updates after the first, seconds between pictures, and the number of GPUs."""
    live = LiveFleet(StoreSamples(store).read, "benchmark", judge=FleetJudge())
    tables, updates, between = to_tables(await live.newest()), [], 0.0
    for number in range(PICTURES):
        await asyncio.sleep(max(0.0, live.seconds_to_next) + 0.05)
        scrapes.scrape_next(round(scrapes.nodes / EVERY_SECONDS * max(1.0, between)))
        before, began = time.process_time(), time.monotonic()
        picture = await live.newest()
        made = time.process_time()
        new = to_tables(picture, tables)
        plain = orjson.dumps(difference(tables, new))
        sent, tables = len(zlib.compress(plain, 6)), new
        between = live.seconds_to_next + time.monotonic() - began
        updates.append(Update(made - before, time.process_time() - made, sent))
        print(f"update {number + 1} of {PICTURES}: {updates[-1]}", file=sys.stderr, flush=True)
    return updates[1:], between, len(tables.by_name["gpus"].rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    nodes = parser.parse_args().nodes
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), StoreOptions()) as store:
        store.start()
        scrapes = SimulatedScrapes(store, nodes)
        scrapes.fill()
        updates, between, gpus = asyncio.run(measure(store, scrapes))
    pictures = [1000 * one.picture_seconds for one in updates]
    differences = [1000 * one.difference_seconds for one in updates]
    rows = [
        ("picture, CPU, best / median / worst, ms", _three(pictures)),
        ("difference and its compression, CPU, best / median / worst, ms", _three(differences)),
        (
            "sent to a viewer per update, median, kB",
            f"{statistics.median(one.bytes_sent for one in updates) / 1000:.1f}",
        ),
        ("a picture every, s", f"{between:.1f}"),
    ]
    print(table((f"{nodes:,} nodes, {gpus:,} GPUs", "measured"), rows))


def _three(values: list[float]) -> str:
    return f"{min(values):.0f} / {statistics.median(values):.0f} / {max(values):.0f}"


if __name__ == "__main__":
    main()
