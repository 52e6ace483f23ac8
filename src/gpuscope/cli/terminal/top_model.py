"""What `gpuscope top` shows: the newest view, a short history, and the user's choice of rows and order.

No terminal here: keys change the model, `gpu_rows` and `process_rows` are what is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow, ProcessRow
from gpuscope.cli.terminal.process_tree import Ancestor, to_tree
from gpuscope.cli.terminal.row_selection import GPU_SORTS, PROCESS_SORTS, matches

HISTORY_SAMPLES: Final = 120
_GPU_SORT_OF: Final = {"memory": "memory", "sm": "util", "user": "user"}
"""Orders of processes that make sense for GPUs."""
GpuKey = tuple[str, str]
ProcessKey = tuple[str, int, str]


@dataclass(slots=True)
class TopModel:
    unicode: bool = True
    view: FleetView = field(default_factory=lambda: FleetView(now=0.0))
    ancestors: Mapping[int, Ancestor] = field(default_factory=dict)
    problem: str = ""
    """Why there are no newer numbers; empty if the last read succeeded."""
    paused: bool = False
    sort: str = "gpu"
    reverse: bool = False
    filter: str = ""
    search: str = ""
    tree: bool = False
    only_gpu: GpuKey | None = None
    history: dict[GpuKey, deque[float | None]] = field(default_factory=dict)

    def take(self, view: FleetView, ancestors: Mapping[int, Ancestor]) -> None:
        self.view, self.ancestors, self.problem = view, ancestors, ""
        present = set()
        for row in view.gpus:
            key = (row.node, row.uuid)
            present.add(key)
            past = self.history.get(key)
            if past is None:
                past = self.history[key] = deque(maxlen=HISTORY_SAMPLES)
            past.append(row.working_ratio if row.may_be_free or row.state not in ("stale", "gone") else None)
        for key in self.history.keys() - present:
            del self.history[key]

    @property
    def several_nodes(self) -> bool:
        return len(self.view.nodes) > 1

    def gpu_rows(self) -> Sequence[GpuRow]:
        """On one machine GPUs keep their places; a fleet, which is too long to look through, is sorted too."""
        name = _GPU_SORT_OF.get(self.sort)
        if name is None or not self.several_nodes:
            return self.view.gpus
        return sorted(self.view.gpus, key=GPU_SORTS[name], reverse=self.reverse)

    def process_rows(self) -> Sequence[ProcessRow]:
        rows: Sequence[ProcessRow] = self.view.processes
        if self.only_gpu is not None:
            node, uuid = self.only_gpu
            units = {uuid} | {row.uuid for row in self.view.gpus if row.parent == uuid and row.node == node}
            rows = [row for row in rows if row.node == node and row.uuid in units]
        if self.filter:
            rows = [row for row in rows if matches(row, self.filter)]
        rows = sorted(rows, key=PROCESS_SORTS[self.sort], reverse=self.reverse)
        return to_tree(rows, self.ancestors, self.unicode) if self.tree else rows

    def find(self, rows: Sequence[ProcessRow], after: int) -> int | None:
        """The index of the next row that has the searched text; from the top again after the last."""
        if not self.search:
            return None
        order = [*range(after + 1, len(rows)), *range(min(after + 1, len(rows)))]
        return next((i for i in order if matches(rows[i], self.search)), None)

    def next_sort(self, step: int) -> None:
        names = list(PROCESS_SORTS)
        self.sort = names[(names.index(self.sort) + step) % len(names)]


def process_key(row: ProcessRow) -> ProcessKey:
    return row.node, row.pid, row.uuid


def gpu_key(row: GpuRow) -> GpuKey:
    return row.node, row.uuid
