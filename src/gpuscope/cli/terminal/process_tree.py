"""Processes as a tree: GPU processes below the programs that started them.

Ancestors that do not use a GPU are shown only where they help: the direct parent of a GPU process, and programs
that started several (torchrun, a notebook server). Parents are known only on the machine itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuscope.cli.terminal.fleet_view import ProcessRow

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
