"""The store's contents in memory: the sealed blocks and the head of each target.

The lock makes three steps atomic for readers: a commit that seals, merges or drops blocks, the matching change
here, and the start of a reader's SQLite transaction. So a reader sees each sample either in the head or in a
block, never in both or in neither. Appending ticks does not take the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import HeadView
from gpuscope.history.store.newest_rows import NewestRows
from gpuscope.history.store.options import ROLLUP_TARGET_PREFIX
from gpuscope.history.store.tick import Int64s

LATE_LEVEL = -1
"""The level of a block whose samples arrived after their window was sealed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Sealed samples of one target: `first` and `last` are the times of its oldest and newest sample."""

    id: int
    target: int
    level: int
    first: int
    last: int
    samples: int


@dataclass(slots=True)
class LateHead:
    """Samples that arrived after their window was sealed; later sealed into blocks of `LATE_LEVEL`."""

    since_ms: int
    """Store time of its first append."""
    head: Head = field(default_factory=Head)
    closed_at: int | None = None
    """Tick sequence number at which it was closed for sealing; None while it accepts samples."""


@dataclass(slots=True)
class StoredTargetState:
    """A target's data. `blocks` and `late` are replaced, never modified; `head` is replaced by a seal."""

    id: int
    name: str
    floor: int = -1
    """Samples up to this time are sealed: samples that arrive for them now are late."""
    head: Head = field(default_factory=Head)
    blocks: tuple[Block, ...] = ()
    newest_sealed: int = -1
    """The newest time in the blocks; -1 if there are none."""
    appended_ms: int = 0
    """Store time of the last append."""
    late: tuple[LateHead, ...] = ()
    """Usually empty; the last one accepts samples, the others are being sealed."""
    late_ms: int = 0
    """Store time of the last late append."""

    @property
    def is_rollup(self) -> bool:
        return self.name.startswith(ROLLUP_TARGET_PREFIX)


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target's data at one moment, for one reader."""

    blocks: Sequence[Block]
    head: HeadView
    late: tuple[HeadView, ...] = ()

    def newest_sealed(self) -> int:
        """Return the newest time in blocks and late heads; -1 if there are none."""
        sealed = max((block.last for block in self.blocks), default=-1)
        return max(sealed, *(head.last for head in self.late)) if self.late else sealed


class Contents:
    """All targets by id and by name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.newest = NewestRows()
        """Published by whoever changes a head."""
        self._states: dict[int, StoredTargetState] = {}
        self._ids: dict[str, int] = {}
        self._new: list[tuple[int, str]] = []
        self._next_target = 1
        self._next_block = 1

    def add(self, target: int, name: str, floor: int | None) -> None:
        """Add a target read from the file."""
        self._states[target] = StoredTargetState(target, name, -1 if floor is None else floor)
        self._ids[name] = target
        self._next_target = max(self._next_target, target + 1)

    def target(self, name: str) -> int:
        """Return the id of a target; assign one if the name is new."""
        with self.lock:
            found = self._ids.get(name)
            if found is None:
                name.encode()
                found = self._next_target
                self.add(found, name, None)
                self._new.append((found, name))
            return found

    def take_new(self) -> list[tuple[int, str]]:
        with self.lock:
            new, self._new = self._new, []
            return new

    def put_back(self, rows: list[tuple[int, str]]) -> None:
        with self.lock:
            self._new = rows + self._new

    def next_block(self) -> int:
        self._next_block += 1
        return self._next_block - 1

    def add_blocks(self, blocks: Iterable[Block]) -> None:
        """Add blocks read from the file or just committed; the caller holds the lock once readers exist."""
        for block in blocks:
            state = self._states[block.target]
            state.blocks = tuple(sorted((*state.blocks, block), key=_read_order))
            state.newest_sealed = max(state.newest_sealed, block.last)
            self._next_block = max(self._next_block, block.id + 1)

    def drop_blocks(self, blocks: Iterable[Block]) -> None:
        """The caller holds the lock."""
        for block in blocks:
            state = self._states[block.target]
            state.blocks = tuple(other for other in state.blocks if other.id != block.id)
            state.newest_sealed = max((block.last for block in state.blocks), default=-1)

    def forget_blocks(self) -> None:
        """Remove all blocks because their file was deleted; the caller holds the lock."""
        for state in self._states.values():
            state.blocks = ()
            state.newest_sealed = -1

    def drop_target(self, target: int) -> None:
        """The caller holds the lock."""
        state = self._states.pop(target)
        del self._ids[state.name]
        self.newest.forget(target)

    def get(self, target: int) -> StoredTargetState | None:
        return self._states.get(target)

    def get_all(self, targets: Iterable[int]) -> list[StoredTargetState]:
        """Return the state of each target, an empty one if it was just removed; the caller holds the lock."""
        return [state or StoredTargetState(0, "") for state in map(self._states.get, targets)]

    def states(self) -> list[StoredTargetState]:
        return list(self._states.values())

    def living_series(self) -> Iterator[Int64s]:
        """Yield the ids of series that have samples in a head, some of them several times."""
        for state in self.states():
            yield state.head.order[0]
            yield from (late_head.head.order[0] for late_head in state.late)

    def blocks(self) -> list[Block]:
        return [block for state in self.states() for block in state.blocks]

    def view(self, target: int, start: int, end: int) -> TargetView | None:
        """Return the blocks that overlap [start, end] and the heads; the caller holds the lock."""
        state = self._states.get(target)
        if state is None:
            return None
        blocks = [block for block in state.blocks if block.first <= end and block.last >= start]
        late = tuple(late_head.head.view() for late_head in state.late) if state.late else ()
        return TargetView(blocks, state.head.view(), late)


def _read_order(block: Block) -> tuple[bool, int, int]:
    """By time, late blocks last: if two blocks have a sample at the same time, the first block's is used."""
    is_late = block.level == LATE_LEVEL
    return is_late, block.id if is_late else block.first, block.id
