"""What `gpuscope top` shows: the newest view, a short history, and the user's choice of rows and order.

No terminal here: keys change the model, `gpu_rows` and `process_rows` are what is drawn.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpuscope.cli.terminal.fleet_lines import STATE_ORDER
from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow, ProcessRow

# Processes as a tree: GPU processes below the programs that started them.
#
# Ancestors that do not use a GPU are shown only where they help: the direct parent of a GPU process, and
# programs that started several (torchrun, a notebook server). Parents are known only on the machine itself.

MAX_DEPTH: Final = 32
INIT_PID: Final = 1


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A process that does not use a GPU."""

    pid: int
    parent_pid: int
    user: str
    command_line: str


def to_tree(rows: Sequence[ProcessRow], ancestors: Mapping[int, Ancestor], unicode: bool) -> list[ProcessRow]:
    """The rows in the order of a tree, commands indented; roots stay in the order of `rows`."""
    on_gpu = {row.pid for row in rows}
    children: dict[int, list[int]] = defaultdict(list)
    roots: list[int] = []
    parents = {row.pid: row.parent_pid for row in rows}
    for pid in dict.fromkeys(row.pid for row in rows):
        _place(pid, parents, ancestors, children, roots)
    shown: list[ProcessRow] = []
    for root in roots:
        _walk(root, "", "", _Forest(rows, ancestors, children, on_gpu, unicode), shown)
    # Parents are read at different moments; a circle has no root, and nothing may be hidden.
    placed = {row.pid for row in shown}
    return shown + [row for row in rows if row.pid not in placed]


@dataclass(frozen=True, slots=True)
class _Forest:
    rows: Sequence[ProcessRow]
    ancestors: Mapping[int, Ancestor]
    children: Mapping[int, Sequence[int]]
    on_gpu: set[int]
    unicode: bool


def _place(
    pid: int,
    parents: Mapping[int, int | None],
    ancestors: Mapping[int, Ancestor],
    children: dict[int, list[int]],
    roots: list[int],
) -> None:
    """Adds the process and its ancestors to the forest."""
    for _ in range(MAX_DEPTH):  # a circle must end
        known = ancestors.get(pid)
        parent = parents.get(pid, known.parent_pid if known else None)
        if parent is None or parent == pid or (parent not in parents and parent not in ancestors):
            break
        if pid in children[parent]:
            return
        children[parent].append(pid)
        pid = parent
    if pid not in roots:
        roots.append(pid)


def _walk(pid: int, stem: str, branch: str, forest: _Forest, shown: list[ProcessRow]) -> None:
    below = list(forest.children.get(pid, ()))
    if len(stem) > 2 * MAX_DEPTH:
        return
    is_worth_showing = len(below) > 1 or any(child in forest.on_gpu for child in below)
    if pid in forest.on_gpu:
        for row in forest.rows:
            if row.pid == pid:
                shown.append(_indented(row, branch))
    elif is_worth_showing:
        known = forest.ancestors[pid]
        ancestor = ProcessRow(
            uuid="", gpu="", node="", pid=pid, user=known.user, command_line=known.command_line, state=""
        )
        shown.append(_indented(ancestor, branch))
    else:
        for child in below:
            _walk(child, stem, branch, forest, shown)
        return
    tee, corner, pipe = ("├─ ", "└─ ", "│  ") if forest.unicode else ("|- ", "`- ", "|  ")
    for child in below:
        last = child == below[-1]
        _walk(child, stem + ("   " if last else pipe), stem + (corner if last else tee), forest, shown)


def _indented(row: ProcessRow, branch: str) -> ProcessRow:
    return replace(row, command_line=branch + (row.command_line or row.command)) if branch else row


# Which GPUs and processes are shown, and in which order: by user, node and free text.

GPU_SORTS: Final[dict[str, Callable[[GpuRow], Any]]] = {
    "gpu": lambda row: 0,  # as they come: by node and index
    "util": lambda row: _descending(row.working_ratio),
    "memory": lambda row: _descending(row.memory_used_bytes),
    "power": lambda row: _descending(row.power_watts),
    "temperature": lambda row: _descending(row.temperature_celsius),
    "state": lambda row: STATE_ORDER.get(row.state, 99),
    "user": lambda row: row.users or ("\U0010ffff",),  # those without a user last
}
PROCESS_SORTS: Final[dict[str, Callable[[ProcessRow], Any]]] = {
    "gpu": lambda row: 0,
    "memory": lambda row: _descending(row.memory_bytes),
    "sm": lambda row: _descending(row.sm_ratio),
    "cpu": lambda row: _descending(row.cpu_ratio),
    "user": lambda row: row.user or "\U0010ffff",
    "time": lambda row: row.started_at if row.started_at is not None else float("inf"),
    "pid": lambda row: row.pid,
    "command": lambda row: row.command,
}
_PROCESS_SORT_OF: Final = {"util": "sm", "memory": "memory", "user": "user"}


def _descending(value: float | None) -> float:
    """Absent numbers last."""
    return float("inf") if value is None else -value


def select(view: FleetView, *, user: str = "", nodes: Sequence[str] = (), sort: str = "gpu") -> FleetView:
    """`user`: only GPUs that this user is on, and this user's processes."""
    if nodes:
        view = view.of_nodes(nodes)
    gpus, processes = view.gpus, view.processes
    if user:
        gpus = tuple(row for row in gpus if user in row.users)
        processes = tuple(row for row in processes if row.user == user)
    gpus = tuple(sorted(gpus, key=GPU_SORTS[sort]))
    processes = tuple(sorted(processes, key=PROCESS_SORTS[_PROCESS_SORT_OF.get(sort, "gpu")]))
    return replace(view, gpus=gpus, processes=processes)


def matches(row: ProcessRow, text: str) -> bool:
    """Whether PID, user, owner, node or command contain the text; case does not matter."""
    wanted = text.casefold()
    fields = (str(row.pid), row.user, row.place, row.node, row.command, row.command_line)
    return any(wanted in field.casefold() for field in fields)


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
