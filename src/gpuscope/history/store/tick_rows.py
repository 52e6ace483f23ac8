"""Stores ticks as rows, and replays them into heads when the store is opened.

The table `tick` holds the same samples as the heads. If all samples of a tick share one time, its row holds the
values and a reference to its layout; otherwise it holds series ids, times and values, one array after another.
"""

from __future__ import annotations

import sqlite3

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import Layout
from gpuscope.history.store.schema import TICK_BITS
from gpuscope.history.store.tick import Float64s, Int64s

TickRow = tuple[int, int, int, int | None, bytes]
Mixed = tuple[Int64s, Int64s, Float64s]

INSERT_TICK = "INSERT INTO tick (id, first, last, layout, data) VALUES (?, ?, ?, ?, ?)"
_MAX_TICKS_IN_RUN = 128

INSERT_LAYOUT = "INSERT INTO layout (id, target, series) VALUES (?, ?, ?)"


def pack_series(series: Int64s | NDArray[np.uint32]) -> bytes:
    return series.astype("<u4").tobytes()


def unpack_series(data: bytes) -> Int64s:
    return np.frombuffer(data, "<u4").astype(np.int64)


def pack_mixed(series: Int64s, times: Int64s, values: Float64s) -> bytes:
    return pack_series(series) + times.astype("<i8").tobytes() + values.astype("<f8").tobytes()


def unpack_mixed(data: bytes) -> Mixed:
    count = len(data) // 20
    return (
        unpack_series(data[: 4 * count]),
        np.frombuffer(data, "<i8", count, 4 * count).astype(np.int64),
        np.frombuffer(data, "<f8", count, 12 * count).astype(np.float64),
    )


def tick_range(target: int) -> tuple[int, int]:
    """Return the first and last possible id of a target's ticks."""
    return target << TICK_BITS, ((target + 1) << TICK_BITS) - 1


class _Run:
    """Consecutive ticks of one layout, in time order, which are added to a head together."""

    __slots__ = ("_data", "_head", "_layout", "_times")

    def __init__(self, head: Head, layout: Layout) -> None:
        self._head = head
        self._layout = layout
        self._times: list[int] = []
        self._data: list[bytes] = []

    def takes(self, head: Head, layout: Layout | None, time: int) -> bool:
        fits = head is self._head and layout is self._layout and len(self._times) < _MAX_TICKS_IN_RUN
        return fits and time > self._times[-1]

    def add(self, time: int, data: bytes) -> None:
        self._times.append(time)
        self._data.append(data)

    def finish(self) -> None:
        # A bytearray, because the rows must be writable: late samples may be inserted into them.
        values = np.frombuffer(bytearray().join(self._data), "<f8").reshape(len(self._times), -1)
        self._head.append_rows(np.array(self._times, np.int64), self._layout, values)


def replay(db: sqlite3.Connection, heads: dict[int, Head], epoch: int) -> int:
    """Fill empty heads with all ticks of the file; return the highest tick sequence number."""
    series_of: dict[int, Int64s] = {
        number: unpack_series(series) for number, series in db.execute("SELECT id, series FROM layout")
    }
    highest = 0
    known: dict[int, Layout] = {}
    run: _Run | None = None
    for row_id, first, number, data in db.execute("SELECT id, first, layout, data FROM tick ORDER BY id"):
        highest = max(highest, row_id & ((1 << TICK_BITS) - 1))
        head = heads.get(row_id >> TICK_BITS)
        series = series_of.get(number) if number is not None else None
        if head is None or (number is not None and (series is None or len(series) * 8 != len(data))):
            continue
        if run is not None and not run.takes(head, known.get(number), first):
            run.finish()
            run = None
        if series is None:
            head.insert(*unpack_mixed(data))
        elif run is None and head.last is not None and first <= head.last:
            head.insert(series, np.full(len(series), first, np.int64), np.frombuffer(data, "<f8"))
        else:
            if run is None:
                run = _Run(head, _layout(known, number, head, series, epoch))
            run.add(first, data)
    if run is not None:
        run.finish()
    return highest


def _layout(known: dict[int, Layout], number: int, head: Head, series: Int64s, epoch: int) -> Layout:
    layout = known.get(number)
    if layout is None:
        layout = known[number] = head.add_layout(series, epoch)
        layout.row_id = number
    return layout


def drop_before(db: sqlite3.Connection, target: int, boundary: int) -> None:
    """Delete the sealed samples: ticks before a time, and the older part of ticks that span it."""
    low, high = tick_range(target)
    db.execute("DELETE FROM tick WHERE id BETWEEN ? AND ? AND last < ?", (low, high, boundary))
    straddling = db.execute(
        "SELECT id, last, data FROM tick WHERE id BETWEEN ? AND ? AND first < ?", (low, high, boundary)
    ).fetchall()
    for row_id, last, data in straddling:
        series, times, values = unpack_mixed(data)
        late = times >= boundary
        rest = pack_mixed(series[late], times[late], values[late])
        db.execute(
            "UPDATE tick SET first = ?, last = ?, data = ? WHERE id = ?",
            (int(times[late].min()), last, rest, row_id),
        )
    db.execute(
        """DELETE FROM layout WHERE target = ? AND id NOT IN
           (SELECT layout FROM tick WHERE id BETWEEN ? AND ? AND layout IS NOT NULL)""",
        (target, low, high),
    )
