"""The budgets of the benchmarks: what was measured, what is allowed, and whether it is held.

A benchmark passes its rows to `report`, which prints them as a table. `python -m benchmarks` prints the rows of
all its benchmarks again at the end: it names a file in `BUDGETS_FILE`, to which `report` appends them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import table

BUDGETS_FILE = "GPUSCOPE_BENCH_BUDGETS"


@dataclass(frozen=True, slots=True)
class BudgetRow:
    what: str
    measured: float
    limit: float
    unit: str = ""
    at_least: bool = False
    """Whether the limit is the lowest value allowed; otherwise it is the highest."""

    @property
    def is_held(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def cells(self) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        unit = f" {self.unit}" if self.unit else ""
        verdict = "held" if self.is_held else "**missed**"
        return [self.what, f"{self.measured:.3g}{unit}", f"{sign} {self.limit:g}{unit}", verdict]


def budget_table(rows: Sequence[BudgetRow]) -> str:
    missed = sum(not row.is_held for row in rows)
    text = table(["budget", "measured", "allowed", ""], [row.cells() for row in rows])
    return f"{text}\n\n{len(rows) - missed} of {len(rows)} budgets held"


def report(rows: Sequence[BudgetRow]) -> None:
    """Print the rows, and add them to the file of a run of several benchmarks."""
    if not rows:
        return
    print(f"\n{budget_table(rows)}", flush=True)
    path = os.environ.get(BUDGETS_FILE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


def read_reported(path: Path) -> list[BudgetRow]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [BudgetRow(**json.loads(line)) for line in lines]
