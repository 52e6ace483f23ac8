"""From the file to memory when a store is opened: index, catalogue, heads."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gpuscope.store.blockwrite import orphans
from gpuscope.store.catalog import Block, Catalog
from gpuscope.store.index import Index
from gpuscope.store.late import replay_late
from gpuscope.store.tickrows import replay


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found, and where the counters of ids go on."""

    index: Index
    catalog: Catalog
    next_sequence: int
    next_layout: int
    orphans: list[int]
    """Blocks that a crash left half written or half swept."""


def load(db: sqlite3.Connection, now_ms: int) -> Loaded:
    """Read everything but the chunks. Raises sqlite3.Error if that cannot be done."""
    index, catalog = Index(), Catalog()
    for target, name, floor in db.execute("SELECT id, name, floor FROM target"):
        catalog.add(target, name, floor)
    index.load(
        db.execute("SELECT id, name, value FROM pair ORDER BY id"),
        db.execute("SELECT id, target, pairs FROM series ORDER BY id"),
        db.execute("SELECT series, target FROM shared"),
    )
    rows = db.execute("SELECT id, target, level, first, last, samples FROM block").fetchall()
    catalog.add_blocks(Block(*row) for row in rows if catalog.get(row[1]) is not None)
    heads = {state.id: state.head for state in catalog.states()}
    sequence = max(replay(db, heads, index.epoch), replay_late(db, catalog, now_ms))
    for state in catalog.states():
        state.appended_ms = now_ms
    layout = db.execute("SELECT max(id) FROM layout").fetchone()[0] or 0
    unfinished = orphans(db, {row[0] for row in rows})
    return Loaded(index, catalog, sequence + 1, layout + 1, unfinished)
