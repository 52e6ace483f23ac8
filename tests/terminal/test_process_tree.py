"""Processes as a tree."""

from __future__ import annotations

from gpuscope.cli.terminal.fleet_view import ProcessRow
from gpuscope.cli.terminal.top_model import Ancestor, to_tree


def process(pid: int, parent: int | None, gpu: str = "0") -> ProcessRow:
    return ProcessRow(uuid=f"GPU-{gpu}", gpu=gpu, node="a", pid=pid, command=f"p{pid}", parent_pid=parent)


def ancestor(pid: int, parent: int) -> Ancestor:
    return Ancestor(pid, parent, "alice", f"p{pid}")


def tree(rows: list[ProcessRow], *ancestors: Ancestor, unicode: bool = True) -> list[str]:
    known = {one.pid: one for one in ancestors}
    return [row.command_line or row.command for row in to_tree(rows, known, unicode)]


def test_a_launcher_and_its_workers() -> None:
    shell, torchrun = ancestor(10, 1), ancestor(20, 10)
    rows = [process(31, 20), process(32, 20, "1"), process(40, 10, "2")]
    assert tree(rows, shell, torchrun) == ["p10", "├─ p20", "│  ├─ p31", "│  └─ p32", "└─ p40"]
    assert tree(rows, shell, torchrun, unicode=False)[1:3] == ["|- p20", "|  |- p31"]


def test_ancestors_that_say_nothing_are_left_out() -> None:
    assert tree([process(40, 30)], ancestor(10, 1), ancestor(20, 10), ancestor(30, 20)) == ["p30", "└─ p40"]


def test_a_process_on_two_gpus_and_its_child() -> None:
    rows = [process(5, 1), process(5, 1, "1"), process(6, 5)]
    assert tree(rows) == ["p5", "p5", "└─ p6"]


def test_a_circle_ends() -> None:
    assert sorted(tree([process(5, 6), process(6, 5)])) == ["p5", "p6"]
    assert tree([process(5, 5)]) == ["p5"]


def test_without_parents_all_rows_stay() -> None:
    assert tree([process(5, None), process(4, None)]) == ["p5", "p4"]
