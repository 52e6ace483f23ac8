"""Evaluation times: the hash, the slots of a group, and evaluations that were missed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.judge.rules.rule_spec import (
    SECOND_NS,
    GroupSpec,
    first_slot_ns,
    group_offset_ns,
    missed_slots,
    xxhash64,
)

# From the reference implementation.
KNOWN = {
    0: 0xEF46DB3751D8E999,
    3: 0xE5C7BB4533BC65DD,
    7: 0x14CC643F630C72D2,
    31: 0xC346D2B59B4D8EE1,
    100: 0x6AC1E58032166597,
}


@pytest.mark.parametrize("length", KNOWN)
def test_the_hash_is_xxhash64(length: int) -> None:
    assert xxhash64(bytes(range(length))) == KNOWN[length]


@given(
    st.text(max_size=20), st.text(min_size=1, max_size=20), st.integers(1, 10**13), st.integers(0, 2 * 10**18)
)
def test_the_first_slot_is_after_the_start_and_on_the_grid(
    file: str, name: str, interval_ns: int, now_ns: int
) -> None:
    spec = GroupSpec(name, file, interval_ns)
    slot = first_slot_ns(spec, now_ns)
    assert now_ns < slot <= now_ns + interval_ns
    assert (slot - group_offset_ns(spec)) % interval_ns == 0


def test_missed_evaluations_are_those_whose_time_has_passed() -> None:
    slot, interval = 100 * SECOND_NS, 10 * SECOND_NS
    assert missed_slots(slot, slot + interval, interval) == 0
    assert missed_slots(slot, slot + 2 * interval - 1, interval) == 0
    assert missed_slots(slot, slot + 2 * interval, interval) == 1
    assert missed_slots(slot, slot + 5 * interval + 1, interval) == 4
