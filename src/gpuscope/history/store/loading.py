"""Loads index, contents and heads from the file when a store is opened."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np

from gpuscope.history.store.block_writer import orphans
from gpuscope.history.store.contents import Block, Contents
from gpuscope.history.store.index import Index
from gpuscope.history.store.late import replay_late
from gpuscope.history.store.store_errors import StoreDamagedError
from gpuscope.history.store.tick_rows import replay


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded data and the next free ids."""

    index: Index
    contents: Contents
    next_sequence: int
    next_layout: int
    orphans: list[int]
    """Blocks that a crash left incomplete."""


def check_labels(pairs: list[tuple[int, str, str]], series: list[tuple[int, int, bytes]]) -> None:
    """Raise StoreDamagedError if labels are not as the store writes them: every query on them would fail."""
    for number, name, value in pairs:
        if not (isinstance(name, str) and isinstance(value, str)):
            raise StoreDamagedError(f"label pair {number} is not text")
    for sid, target, packed in series:
        if not isinstance(target, int) or not isinstance(packed, bytes) or len(packed) % 4:
            raise StoreDamagedError(f"series {sid} has damaged labels")
    used = np.frombuffer(b"".join(packed for _, _, packed in series), "<i4")
    known = np.fromiter((number for number, _, _ in pairs), np.int64, len(pairs))
    at = np.minimum(np.searchsorted(known, used), max(0, len(known) - 1))
    if len(used) and (not len(known) or (known[at] != used).any()):
        raise StoreDamagedError("a series has a label that does not exist")


def load(db: sqlite3.Connection, now_ms: int) -> Loaded:
    """Load everything except chunks. Raises sqlite3.Error if the file cannot be read."""
    index, contents = Index(), Contents()
    for target, name, floor in db.execute("SELECT id, name, floor FROM target"):
        if not isinstance(name, str) or not isinstance(floor, int | None):
            raise StoreDamagedError(f"target {target} has a damaged name or time")
        contents.add(target, name, floor)
    pairs = db.execute("SELECT id, name, value FROM pair ORDER BY id").fetchall()
    series = db.execute("SELECT id, target, pairs FROM series ORDER BY id").fetchall()
    check_labels(pairs, series)
    index.load(pairs, series, db.execute("SELECT series, target FROM shared"))
    rows = db.execute("SELECT id, target, level, first, last, samples FROM block").fetchall()
    contents.add_blocks(Block(*row) for row in rows if contents.get(row[1]) is not None)
    heads = {state.id: state.head for state in contents.states()}
    sequence = max(replay(db, heads, index.epoch), replay_late(db, contents, now_ms))
    for state in contents.states():
        state.appended_ms = now_ms
        contents.newest.publish(state.id, state.head)
    index.count_ended(contents.living_series())
    layout = db.execute("SELECT max(id) FROM layout").fetchone()[0] or 0
    unfinished = orphans(db, {row[0] for row in rows})
    return Loaded(index, contents, sequence + 1, layout + 1, unfinished)
