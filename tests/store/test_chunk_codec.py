from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.history.store.chunk_codec import (
    ChunkDamagedError,
    TimeSelection,
    decode_values,
    encode_values,
    from_bundle,
    join_chunk,
    pack_columns,
    pack_integers,
    select_by_mask,
    split_chunk,
    to_bundles,
    unpack_columns,
)
from gpuscope.model.series import STALE_NAN_BITS
from tests.examples import examples

any_bits = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False).map(lambda value: struct.unpack("<q", struct.pack("<d", value))[0]),
    st.integers(-1000, 1000).map(lambda value: struct.unpack("<q", struct.pack("<d", value / 10))[0]),
    st.sampled_from([STALE_NAN_BITS, 0, -(2**63), 0x7FF0 << 48, -(0x10 << 48), 0x7FF8 << 48]),
)


def same_bits(values: np.ndarray) -> None:
    encoded = encode_values(values)
    decoded = decode_values(encoded, len(values))
    assert decoded.view(np.int64).tolist() == values.view(np.int64).tolist()


@given(st.lists(any_bits, min_size=1, max_size=60))
@settings(max_examples=examples(200), deadline=None)
def test_every_bit_pattern_round_trips(patterns: list[int]) -> None:
    same_bits(np.array(patterns, np.int64).view(np.float64))


@pytest.mark.parametrize("decimals", [0, 1, 2, 3, 4, 5, 6, 9])
def test_decimals_round_trip(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    same_bits(np.round(rng.normal(0, 1000, 500), decimals))


def test_a_constant_takes_a_few_bytes_also_with_a_stale_marker() -> None:
    values = np.full(480, 42.0)
    assert len(encode_values(values)) <= 3
    values.view(np.int64)[-1] = STALE_NAN_BITS
    same_bits(values)
    assert len(encode_values(values)) <= 16


def test_milliwatts_compress_as_integers() -> None:
    rng = np.random.default_rng(1)
    watts = np.round(300 + rng.normal(0, 5, 480), 3)
    assert len(encode_values(watts)) < 480 * 2.2
    assert len(encode_values(watts * np.pi)) > 480 * 5


@given(st.lists(st.booleans(), min_size=1, max_size=200).filter(any))
@settings(max_examples=examples(150), deadline=None)
def test_any_time_selection_round_trips(present: list[bool]) -> None:
    column = np.arange(len(present), dtype=np.int64) * 15_000
    mask = np.array(present)
    where = select_by_mask(mask)
    chunk = join_chunk(encode_values(np.ones(int(mask.sum()))), where)
    again, values = split_chunk(chunk)
    assert again == where
    assert again.pick([column]).tolist() == column[mask].tolist()
    assert values.decode(int(mask.sum())).tolist() == [1.0] * int(mask.sum())


def test_a_chunk_may_have_its_own_times() -> None:
    times = np.array([3, 5, 70_000], np.int64)
    chunk = join_chunk(encode_values(np.array([1.5, 2.5, 3.5])), TimeSelection(own=pack_integers(times)))
    where, values = split_chunk(chunk)
    assert where.pick([]).tolist() == [3, 5, 70_000]
    assert values.decode(3).tolist() == [1.5, 2.5, 3.5]


@given(st.binary(max_size=80))
@settings(max_examples=examples(200), deadline=None)
def test_random_bytes_are_not_a_chunk(noise: bytes) -> None:
    with pytest.raises(ChunkDamagedError):
        split_chunk(noise)
    with pytest.raises(ChunkDamagedError):
        unpack_columns(noise)
    with pytest.raises(ChunkDamagedError):
        list(from_bundle(noise, np.array([1], np.int64)))


def test_every_flipped_bit_is_detected() -> None:
    chunk = join_chunk(encode_values(np.array([1.0, 2.0, 4.5, 9.25])), TimeSelection(2, 3, 4))
    for at in range(len(chunk) * 8):
        broken = bytearray(chunk)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(ChunkDamagedError):
            split_chunk(bytes(broken))


def test_columns_round_trip() -> None:
    columns = [np.arange(5, dtype=np.int64), np.empty(0, np.int64), np.array([2**41], np.int64)]
    assert [c.tolist() for c in unpack_columns(pack_columns(columns))] == [c.tolist() for c in columns]


def test_bundles_split_by_size_and_count_and_round_trip() -> None:
    chunks = [(sid, bytes([sid % 251]) * (sid % 7 * 5000 + 1)) for sid in range(1, 400, 3)]
    rows = to_bundles(9, chunks)
    assert len(rows) > 10
    assert all(len(data) < 110_000 for _, data in rows)
    wanted = np.arange(0, 500, dtype=np.int64)
    assert [pair for _, data in rows for pair in from_bundle(data, wanted)] == chunks
    assert [row >> 32 for row, _ in rows] == [9] * len(rows)
