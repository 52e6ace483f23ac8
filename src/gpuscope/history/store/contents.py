"""The store's contents in memory: the sealed blocks, the head of each target, and the newest row of all heads.

The lock makes three steps atomic for readers: a commit that seals, merges or drops blocks, the matching change
here, and the start of a reader's SQLite transaction. So a reader sees each sample either in the head or in a
block, never in both or in neither. Appending ticks does not take the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT, HeadView
from gpuscope.history.store.options import ROLLUP_TARGET_PREFIX
from gpuscope.history.store.tick import Bools, Float64s, Int64s

# The newest row of every head in one array by series id: an instant query over 1,000 targets is one read.
#
# The writer publishes a head after each change. Readers take no lock: a target whose version is odd, or
# differs before and after the read, was being written, and its head is read instead. Two targets that write
# one series would overwrite each other's value: selections with such series are not read here.

NO_ROW: Final = np.iinfo(np.int64).max
"""The time of a target that has no row, or whose samples are not all in ascending rows."""
_MIN_SIZE = 1024

Number = TypeVar("Number", np.float64, np.int64)


class NewestCells(NamedTuple):
    """What the newest rows of some targets have."""

    moments: Int64s
    """The time of each target's newest row."""
    values: Float64s
    """Of each series; `ABSENT` if the row has none."""
    is_usable: Bools
    """By target; the numbers of any other are not valid."""


class NewestRows:
    """`publish` and `forget` belong to the writer's thread, `read` to any."""

    def __init__(self) -> None:
        self._values = np.full(_MIN_SIZE, ABSENT)
        """By series id. The last cell is never used: ids that are not here yet are read from it."""
        self._moments = np.full(_MIN_SIZE, NO_ROW)
        """By target id, the last one as above."""
        self._versions = np.zeros(_MIN_SIZE, np.int64)
        self._heads: dict[int, Head] = {}

    def publish(self, target: int, head: Head) -> None:
        series, columns = head.order
        self._make_room(target, int(series[-1]) if len(series) else 0)
        row = head.newest_row(NO_ROW)
        before = self._heads.get(target)
        self._versions[target] += 1
        if before is not None and before is not head:  # a seal drops series that have no newer samples
            self._values[before.order[0]] = ABSENT
        if row is None:
            self._moments[target] = NO_ROW
        else:
            self._moments[target], cells = row
            if len(cells) < len(series):  # the row is older than a column
                cells = np.append(cells, np.full(len(series) - len(cells), ABSENT))
            self._values[series] = cells[: len(series)] if head.columns_ascend else cells[columns]
        self._heads[target] = head
        self._versions[target] += 1

    def forget(self, target: int) -> None:
        """A removed target's head must not stay in memory."""
        self._heads.pop(target, None)

    def _make_room(self, target: int, sid: int) -> None:
        """Replace full arrays by larger ones; readers that have the old ones see another version."""
        if sid + 1 >= len(self._values):
            self._values = _grown(self._values, sid + 2, ABSENT)
        if target + 1 >= len(self._moments):
            self._moments = _grown(self._moments, target + 2, NO_ROW)
            self._versions = _grown(self._versions, target + 2, 0)

    def read(self, targets: Int64s, series: Int64s, heads: Sequence[Head]) -> NewestCells:
        """`heads` are those of the targets: rows of a head that a seal has replaced meanwhile are not
        usable."""
        before = self._versions.take(targets, mode="clip")
        moments = self._moments.take(targets, mode="clip")
        values = self._values.take(series, mode="clip")
        known = list(map(self._heads.get, targets.tolist()))
        is_usable = (self._versions.take(targets, mode="clip") == before) & (before & 1 == 0)
        if known != heads:
            is_usable &= np.array([head is other for head, other in zip(known, heads, strict=True)], np.bool_)
        return NewestCells(moments, values, is_usable)


def _grown(old: NDArray[Number], size: int, empty: float) -> NDArray[Number]:
    new = np.full(max(size, len(old) * 5 // 4), empty, old.dtype)
    new[: len(old)] = old
    return new


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
            target = self._ids.get(name)
            if target is None:
                name.encode()
                target = self._next_target
                self.add(target, name, None)
                self._new.append((target, name))
            return target

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
