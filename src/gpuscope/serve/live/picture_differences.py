"""Differences between two live pictures, small enough to send each second to every viewer of 8,000 GPUs.

Input: two successive `LivePicture`s. Output: the picture with rounded numbers, or a `LiveDifference`. Rows are
found again by their key; numbers that change from second to second are columns of small steps, one character
per row, which compress to about half a byte each. A number that is absent has no step and is never 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpuscope.serve.api_types.findings_json import FindingJson
from gpuscope.serve.api_types.live_json import LiveGpu, LiveJob, LiveNode, LivePicture, LiveSession
from gpuscope.serve.api_types.live_stream_json import ColumnDeltas, LiveDifference, StreamColumns, StreamPicture

Row = Mapping[str, Any]
Steps = npt.NDArray[np.float64]
"""Whole numbers; NaN where the number is absent."""

_RATIO, _WHOLE, _MEBIBYTES = 100.0, 1.0, 2.0**-20
COLUMNS: Final[StreamColumns] = {
    "nodes": {"taken_at": _WHOLE, "cpu": _RATIO, "load1": _RATIO, "memory_used": _MEBIBYTES},
    "gpus": {
        "busy": _RATIO,
        "sm": _RATIO,
        "tensor": _RATIO,
        "dram": _RATIO,
        "power": _WHOLE,
        "temperature": _WHOLE,
        "memory_used": _MEBIBYTES,
    },
    "sessions": {"sm": _RATIO, "memory": _MEBIBYTES},
}

_STEPS: Final[Mapping[str, Any]] = COLUMNS
_LETTERS: Final = bytes(code for code in range(ord("#"), ord("~")) if code != ord("\\"))
_MAX_STEP: Final = (len(_LETTERS) - 1) // 2
_FAR: Final = ord("~")
_CODES: Final = np.frombuffer(_LETTERS, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class LiveTable:
    """One list of the picture, with its changing numbers apart from the rest of its rows."""

    keys: list[object]
    rows: Sequence[Row]
    rests: list[tuple[object, ...]]
    """Each row without its changing numbers."""
    columns: dict[str, Steps]
    steps_per_unit: Mapping[str, float]

    def full_row(self, at: int) -> dict[str, Any]:
        """With rounded numbers."""
        row = dict(self.rows[at])
        for name, column in self.columns.items():
            if name in row:
                row[name] = float(column[at]) / self.steps_per_unit[name]
        return row


@dataclass(frozen=True, slots=True, eq=False)
class LiveTables:
    """A picture that the next one can be compared with."""

    picture: LivePicture
    by_name: Mapping[str, LiveTable]


_ROWS: Final[dict[str, tuple[type, Callable[[Row], object]]]] = {
    "nodes": (LiveNode, itemgetter("instance")),
    "gpus": (LiveGpu, itemgetter("uuid")),
    "sessions": (LiveSession, itemgetter("node", "uuid", "pid")),
    "jobs": (LiveJob, itemgetter("job")),
    "findings": (FindingJson, itemgetter("id")),
}
"""The lists of a picture: their rows, and by which key a row is found again."""


def to_tables(picture: LivePicture, before: LiveTables | None = None) -> LiveTables:
    """Tables of a picture. What they have of rows that are also in `before`, as the same objects, is taken from
    there: of a large fleet, most rows are."""
    lists: Mapping[str, Any] = picture
    old = {} if before is None else before.by_name
    return LiveTables(picture, {name: _table(name, lists[name], old.get(name)) for name in _ROWS})


def _table(name: str, rows: Sequence[Any], before: LiveTable | None) -> LiveTable:
    if before is None or len(before.rows) != len(rows):
        return _table_of(name, rows)
    changed = [at for at, (old, new) in enumerate(zip(before.rows, rows, strict=True)) if old is not new]
    if 2 * len(changed) > len(rows):
        return _table_of(name, rows)
    part = _table_of(name, [rows[at] for at in changed])
    keys, rests = before.keys.copy(), before.rests.copy()
    for at, key, rest in zip(changed, part.keys, part.rests, strict=True):
        keys[at], rests[at] = key, rest
    columns = {}
    for column, steps in before.columns.items():
        columns[column] = steps.copy()
        columns[column][changed] = part.columns[column]
    return LiveTable(keys, rows, rests, columns, before.steps_per_unit)


def _table_of(name: str, rows: Sequence[Any]) -> LiveTable:
    absent, (kind, key) = float("nan"), _ROWS[name]
    steps_per_unit = _STEPS.get(name, {})
    columns = {
        column: np.rint(np.array([row.get(column, absent) for row in rows], dtype=np.float64) * per_unit)
        for column, per_unit in steps_per_unit.items()
    }
    names = [annotation for annotation in kind.__annotations__ if annotation not in steps_per_unit]
    rests = [tuple(map(row.get, names)) for row in rows]
    return LiveTable(list(map(key, rows)), rows, rests, columns, steps_per_unit)


def to_picture(tables: LiveTables) -> StreamPicture:
    picture: dict[str, Any] = dict(tables.picture)
    for name in COLUMNS:
        table = tables.by_name[name]
        picture[name] = [table.full_row(at) for at in range(len(table.rows))]
    rounded: Any = picture
    return {"columns": COLUMNS, "picture": rounded}


def difference(old: LiveTables, new: LiveTables) -> LiveDifference:
    before, now = dict(old.picture), dict(new.picture)
    found: Any = {name: now[name] for name in ("now", "taken_at") if name in now}
    found |= {name: now[name] for name in ("counts", "left_out", "not_known") if now[name] != before[name]}
    for name in _ROWS:
        if changes := _changes(old.by_name[name], new.by_name[name]):
            found[name] = changes
    if now["targets"] != before["targets"]:
        found["targets"] = now["targets"]
    made: LiveDifference = found
    return made


def _changes(old: LiveTable, new: LiveTable) -> Any:
    changes: dict[str, Any] = {}
    before: npt.NDArray[np.int64] | None = None  # the old place of each new row; -1 for an added one
    kept: Sequence[int] = range(len(old.rows))
    if old.keys != new.keys:
        kept, before = _match_rows(old.keys, new.keys, changes)
        added = np.flatnonzero(before < 0).tolist()
        if added:
            changes["added"] = [{"at": at, "row": new.full_row(at)} for at in added]
    places: Sequence[int] = range(len(new.rows)) if before is None else np.flatnonzero(before >= 0).tolist()
    replaced = [
        at
        for at, earlier in zip(places, kept, strict=True)
        if old.rests[earlier] is not new.rests[at] and old.rests[earlier] != new.rests[at]
    ]
    if replaced:
        changes["replaced"] = [{"at": at, "row": new.full_row(at)} for at in replaced]
    numbers = _numbers(old, new, before, replaced)
    if numbers:
        changes["numbers"] = numbers
    return changes


def _match_rows(
    old: list[object], new: list[object], changes: dict[str, Any]
) -> tuple[Sequence[int], npt.NDArray[np.int64]]:
    """The old places of the rows that stay, ascending; rows that changed their order are removed and added."""
    places: dict[object, list[int]] = {}  # several of a key that labels repeat, as the PIDs "7" and "07" do
    for place in reversed(range(len(old))):
        places.setdefault(old[place], []).append(place)
    found = [(at, places[key].pop()) for at, key in enumerate(new) if places.get(key)]
    staying = _longest_ascending([place for _, place in found])
    before = np.full(len(new), -1, dtype=np.int64)
    for at, place in found:
        if place in staying:
            before[at] = place
    removed = [at for at in range(len(old)) if at not in staying]
    if removed:
        changes["removed"] = removed
    return sorted(staying), before


def _longest_ascending(places: Sequence[int]) -> set[int]:
    """The longest ascending choice of places: the fewest rows have to move."""
    tails: list[int] = []  # the smallest last place of an ascending choice of each length
    before: dict[int, int | None] = {}
    for place in places:
        length = bisect_left(tails, place)
        before[place] = tails[length - 1] if length else None
        tails[length : length + 1] = [place]
    chosen: set[int] = set()
    place_or_none = tails[-1] if tails else None
    while place_or_none is not None:
        chosen.add(place_or_none)
        place_or_none = before[place_or_none]
    return chosen


def _numbers(
    old: LiveTable, new: LiveTable, before: npt.NDArray[np.int64] | None, replaced: Sequence[int]
) -> dict[str, ColumnDeltas]:
    found: dict[str, ColumnDeltas] = {}
    for name, column in new.columns.items():
        earlier = old.columns[name]
        if before is not None:
            # An added row comes whole: nothing is left to change in it.
            earlier = np.where(before < 0, column, earlier[before]) if len(earlier) else column
        if replaced:
            earlier = earlier.copy() if before is None else earlier
            earlier[replaced] = column[replaced]
        if deltas := _deltas(earlier, column):
            found[name] = deltas
    return found


def _deltas(old: Steps, new: Steps) -> ColumnDeltas | None:
    is_same = (old == new) | (np.isnan(old) & np.isnan(new))
    if is_same.all():
        return None
    change = np.where(is_same, 0.0, new - old)
    is_far = ~(np.abs(change) <= _MAX_STEP)  # NaN, absent before or now, is far
    near = np.where(is_far, 0, change).astype(np.int64) + _MAX_STEP
    codes = np.where(is_far, _FAR, _CODES[near]).astype(np.uint8)
    deltas: ColumnDeltas = {"steps": codes.tobytes().decode("ascii")}
    if is_far.any():
        deltas["far"] = [None if step != step else step for step in new[is_far].tolist()]
    return deltas
