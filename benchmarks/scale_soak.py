"""Memory of one server over time, with everything on: nodes, shipped rules, eight clients, 20 viewers.

The heads of a large fleet grow for 11 to 31 minutes until the first seal, a different time for each node; every
20 minutes later follows the next seal. So memory can be called flat only after each head was sealed twice, 51
minutes after the start, and is compared from then on. Clients ask as open dashboards do, so that the whole run
takes less than a core and other work may go on beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.budgets import BudgetRow
from benchmarks.measure import table
from benchmarks.scale_run import HEADINGS, OURS, ScaleRun, asking, check_rules, heads_sealed, scraping
from benchmarks.simulated_nodes import EVERY_SECONDS, simulated_nodes

SEALS = 2
MAX_GROWTH = 1.03
"""From the first third of the minutes after the seals to the last third; a single minute varies more."""
MIN_MINUTES = 6
CLIENTS = 8
PAUSE_SECONDS = 2.0
"""Between two queries of a client."""
SPARE_TICKS = 40
"""A busy server starts late and scrapes before the first minute counts."""


def growth(mib: Sequence[float]) -> float:
    """Return the ratio of the median of the last third to that of the first third."""
    third = max(1, len(mib) // 3)
    return statistics.median(mib[-third:]) / statistics.median(mib[:third])


def soak(nodes: int, minutes: float, viewers: int) -> list[BudgetRow]:
    """Print the memory of each minute, then everything measured; return whether it was flat."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        # Enough that no text is repeated: its times would be old, and every agent would be called stale.
        ticks = round(60 * minutes / EVERY_SECONDS) + SPARE_TICKS
        port, pipe = stack.enter_context(simulated_nodes(ticks))
        engine = stack.enter_context(scraping(OURS, folder, port, nodes))
        measured = ScaleRun([engine], pipe, folder / "pauses")
        askers, watchers = stack.enter_context(asking(engine.port, CLIENTS, viewers, PAUSE_SECONDS))
        began = time.monotonic()
        flat: list[float] = []
        sealed = 0
        for minute in range(1, round(minutes) + 1):
            rest = began + 60 * minute - time.monotonic()
            measured.observe(f"minute {minute}", max(rest, 1.0), [engine], askers, watchers)
            sealed = heads_sealed(engine.port)
            mib = measured.observed[-1].rss_mib
            if sealed >= SEALS * nodes:
                flat.append(mib)
            print(f"minute {minute}: {mib:.0f} MiB, {sealed / nodes:.2f} seals per head", flush=True)
        check_rules(engine)
    print()
    print(table([f"{nodes} × 600, everything on", *HEADINGS], [one.cells() for one in measured.observed]))
    pause = max(one.longest_pause for one in measured.observed)
    delay = statistics.median(one.delay_p99 for one in measured.observed)
    cpu = statistics.median(one.cpu_percent for one in measured.observed)
    print(f"\nmedian minute: {cpu:.1f} % of a core, scrape delay p99 {delay:.0f} ms")
    rows = [
        BudgetRow(
            f"{nodes} nodes, {minutes:.0f} min: longest pause by garbage collection, CPU", pause, 100, "ms"
        ),
        BudgetRow(f"{nodes} nodes, {minutes:.0f} min: scrape delay p99, median minute", delay, 300, "ms"),
    ]
    if len(flat) < MIN_MINUTES:
        print(
            f"\nnot decided whether memory is flat: {sealed / nodes:.2f} seals per head in {minutes:.0f} min"
            f" and {len(flat)} minutes after {SEALS} seals of every head; {MIN_MINUTES} are needed"
        )
        return rows
    what = f"{nodes} nodes: memory in the last third of {len(flat)} minutes after {SEALS} seals / in the first"
    return [*rows, BudgetRow(what, growth(flat), MAX_GROWTH)]
