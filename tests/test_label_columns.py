"""Label sets as columns, compared with operations on tuples."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.label_columns import LabelColumns, PairNames, PairTable, concatenate, unified
from gpuscope.model.series import Labels

NAMES = ("A", "__name__", "b", "gpu", "z")
SETS = st.lists(
    st.dictionaries(
        st.sampled_from(NAMES), st.sampled_from(("", "0", "1", "10", "2", "é", "5%b")), max_size=5
    ).map(lambda pairs: tuple(sorted((name, value) for name, value in pairs.items() if value))),
    max_size=12,
)
CHOSEN = st.sets(st.sampled_from((*NAMES, "absent")))


def encode(pairs: Sequence[tuple[str, str]]) -> list[bytes]:
    return [b"%b:%b" % (json.dumps(name).encode(), json.dumps(value).encode()) for name, value in pairs]


@given(SETS)
def test_a_sequence_of_label_sets(sets: list[Labels]) -> None:
    columns = LabelColumns.of(sets)
    assert list(columns) == sets == columns
    assert [columns[row] for row in range(len(sets))] == sets
    assert list(columns[1:3]) == sets[1:3]
    assert [json.loads(one) for one in columns.encoded(encode)] == [dict(one) for one in sets]
    assert [json.loads(one) for one in columns[1:3].encoded(encode)] == [dict(one) for one in sets[1:3]]


@given(SETS)
def test_the_order_is_that_of_tuples(sets: list[Labels]) -> None:
    columns = LabelColumns.of(sets)
    assert [sets[row] for row in columns.order()] == sorted(sets)
    kept = np.arange(len(sets))[::2]
    assert [sets[kept[row]] for row in columns.take(kept).order()] == sorted(sets[::2])


@given(SETS, CHOSEN)
def test_groups_and_projections(sets: list[Labels], names: set[str]) -> None:
    columns = LabelColumns.of(sets)
    kept = [tuple(pair for pair in one if pair[0] in names) for one in sets]
    dropped = [tuple(pair for pair in one if pair[0] not in names) for one in sets]
    assert columns.keep(names) == kept
    assert columns.drop(names) == dropped
    groups = columns.keep(names).groups
    assert [kept[row] for row in groups.first.tolist()] == list(dict.fromkeys(kept))
    assert [kept[groups.first[member]] for member in groups.member.tolist()] == kept
    assert columns.keep(names).distinct == (len(set(kept)) == len(kept))


@given(SETS, SETS)
def test_tables_are_unified_by_text(left: list[Labels], right: list[Labels]) -> None:
    one, two = unified(LabelColumns.of(left), LabelColumns.of(right))
    assert (one, two) == (left, right)
    assert one.table is two.table
    both = concatenate((LabelColumns.of(left), LabelColumns.of(right)))
    assert both == left + right
    assert len(both.groups.first) == len({*left, *right})


def stored_columns(table: PairTable, sets: list[Labels]) -> LabelColumns:
    names = PairNames()
    for number, (name, _) in table.pairs.items():
        names.add(number, name)
    numbers = np.array([table.numbers[pair] for one in sets for pair in one], np.int32)
    return LabelColumns.from_numbers(table, names, numbers, np.array([len(one) for one in sets], np.int64))


@given(st.lists(SETS.filter(bool).map(lambda sets: sets[0]), unique=True))
def test_columns_of_a_store(sets: list[Labels]) -> None:
    table = PairTable()
    for number, pair in enumerate(sorted({pair for one in sets for pair in one}), 1):
        table.numbers[pair], table.pairs[number] = number, pair
    assert stored_columns(table, sets) == sets


def test_a_pair_that_a_store_gets_during_a_query_has_one_number() -> None:
    """A label function creates the pair first; then a series with it is stored and selected."""
    table = PairTable({("a", "1"): 1}, {1: ("a", "1")})
    stored = stored_columns(table, [(("a", "1"),)])
    mixed, _ = unified(stored, LabelColumns.of([(("a", "2"),)]))
    made = mixed.table.number(("a", "2"))
    table.numbers["a", "2"], table.pairs[2] = 2, ("a", "2")
    later = stored_columns(table, [(("a", "2"),)])
    _, translated = unified(mixed, later)
    assert translated.codes.tolist() == [[made]]
    assert concatenate((later, mixed)) == [(("a", "2"),), (("a", "1"),)]


@given(SETS, CHOSEN)
def test_groups_have_the_label_sets_that_occur(sets: list[Labels], names: set[str]) -> None:
    kept = LabelColumns.of(sets).keep(names)
    assert list(kept.of_groups) == list(dict.fromkeys(kept))
    assert kept.of_groups is kept.of_groups
