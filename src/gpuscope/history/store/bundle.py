"""Stores the chunks of several series in one row.

One row per chunk would leave a fifth of the file empty, because SQLite packs rows of about page size badly. A
bundle is some tens of kilobytes, so its overflow pages are full. It starts with a directory (series ids, sizes)
protected by a CRC; each chunk has its own CRC.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from gpuscope.history.store.chunk_codec import ChunkDamagedError
from gpuscope.history.store.schema import BLOCK_BITS
from gpuscope.history.store.tick import Int64s

BundleRow = tuple[int, bytes]
_MAX_BYTES = 64 << 10
_MAX_CHUNKS = 256


def to_bundles(block: int, chunks: Iterable[tuple[int, bytes]]) -> list[BundleRow]:
    """Pack chunks, ascending by series, into rows; a row's id is the block id and its first series id."""
    rows: list[BundleRow] = []
    some: list[tuple[int, bytes]] = []
    size = 0
    for sid, data in chunks:
        if some and (size + len(data) > _MAX_BYTES or len(some) == _MAX_CHUNKS):
            rows.append((block << BLOCK_BITS | some[0][0], _pack(some)))
            some, size = [], 0
        some.append((sid, data))
        size += len(data)
    if some:
        rows.append((block << BLOCK_BITS | some[0][0], _pack(some)))
    return rows


def _pack(chunks: list[tuple[int, bytes]]) -> bytes:
    directory = np.array([[sid, len(data)] for sid, data in chunks], "<u4").T.tobytes()
    head = len(chunks).to_bytes(2, "little") + directory
    return head + zlib.crc32(head).to_bytes(4, "little") + b"".join(data for _, data in chunks)


def from_bundle(data: bytes, wanted: Int64s) -> Iterator[tuple[int, bytes]]:
    """Return the chunks of the wanted series that are in the bundle."""
    count = int.from_bytes(data[:2], "little")
    at = 2 + 8 * count
    if len(data) < at + 4 or zlib.crc32(data[:at]) != int.from_bytes(data[at : at + 4], "little"):
        raise ChunkDamagedError("wrong checksum of a bundle's directory")
    directory = np.frombuffer(data, "<u4", 2 * count, 2).astype(np.int64).reshape(2, count)
    place = np.minimum(np.searchsorted(directory[0], wanted), count - 1)
    hit = directory[0][place] == wanted
    ends = np.cumsum(directory[1])[place] + at + 4
    starts = ends - directory[1][place]
    for sid, start, end in zip(wanted[hit].tolist(), starts[hit].tolist(), ends[hit].tolist(), strict=True):
        yield sid, data[start:end]
