from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.history.store import BadMatcherError, series_pairs
from gpuscope.history.store.index import Index
from gpuscope.history.store.series_pairs import literals, predicate
from gpuscope.model.series import Labels, Matcher, MatchOp
from tests.examples import examples
from tests.store.support import labels

NAMES = ("__name__", "gpu", "node")
VALUES = ("", "a", "b", "ab", "a\nb", "node1", "x.y")
PATTERNS = (
    "a", "a|b", "(a|b)", "(?:a|b)", "a.*", "a.+", ".*", ".+", "", "a?", "[ab]+", ".*b", "x.y", "x\\.y", "|a",
    "no.*|b", ".*b.*", ".*.*", ".*1",
)  # fmt: skip

label_sets = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(VALUES) for name in NAMES}), min_size=0, max_size=12
)
matchers = st.lists(
    st.one_of(
        st.builds(
            Matcher,
            st.sampled_from((*NAMES, "other")),
            st.sampled_from([MatchOp.EQUAL, MatchOp.NOT_EQUAL]),
            st.sampled_from(VALUES),
        ),
        st.builds(
            Matcher,
            st.sampled_from((*NAMES, "other")),
            st.sampled_from([MatchOp.REGEX, MatchOp.NOT_REGEX]),
            st.sampled_from(PATTERNS),
        ),
    ),
    max_size=3,
)


def meets(matcher: Matcher, value: str) -> bool:
    """Reference implementation with another regex engine."""
    if matcher.op in (MatchOp.EQUAL, MatchOp.NOT_EQUAL):
        return (value == matcher.value) is (matcher.op is MatchOp.EQUAL)
    matched = re.fullmatch(matcher.value, value, re.DOTALL) is not None
    return matched is (matcher.op is MatchOp.REGEX)


@given(label_sets, matchers, st.integers(0, 12))
@settings(max_examples=examples(200), deadline=None)
def test_select_agrees_with_a_scan_of_all_series(
    sets: list[dict[str, str]], wanted: list[Matcher], settled: int
) -> None:
    index = Index()
    known: dict[int, dict[str, str]] = {}
    for number, one in enumerate(sets):
        if number == settled:
            index = reloaded(index)  # earlier series are in the sorted postings, later ones in the tail
        known[index.resolve(1, tuple(one.items()))] = one
    expected = [sid for sid, one in sorted(known.items()) if all(meets(m, one.get(m.name, "")) for m in wanted)]
    assert index.select(wanted).tolist() == expected


def reloaded(index: Index) -> Index:
    fresh = Index()
    rows = index.take_new()
    fresh.load(rows.pairs, rows.series, rows.shared)
    return fresh


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("op", [MatchOp.REGEX, MatchOp.NOT_REGEX])
def test_regex_shortcuts_match_the_same_values_as_the_regex(pattern: str, op: MatchOp) -> None:
    matcher = Matcher("x", op, pattern)
    for value in VALUES:
        assert predicate(matcher)(value) is meets(matcher, value), value


def test_lists_of_words_do_not_use_the_regex_engine() -> None:
    assert literals("a|b") == {"a", "b"}
    assert literals("(a|b)") == {"a", "b"}
    assert literals("a.b") is None
    assert literals("(a)|(b)") is None


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "[", "*", "(?<=a)b", "\udc00."])
def test_a_bad_regex_is_named_in_the_error(pattern: str) -> None:
    with pytest.raises(BadMatcherError, match="invalid regular expression"):
        Index().select([Matcher("x", MatchOp.REGEX, pattern)])


def test_order_and_empty_values_do_not_change_the_series_id() -> None:
    index = Index()
    one = index.resolve(1, (("a", "1"), ("b", "2")))
    assert index.resolve(2, (("b", "2"), ("c", ""), ("a", "1"))) == one
    assert index.labels(one) == (("a", "1"), ("b", "2"))
    assert len(index) == 1


def test_text_that_cannot_be_stored_gets_no_id() -> None:
    index = Index()
    with pytest.raises(UnicodeEncodeError):
        index.resolve(1, (("a", "\ud800"),))
    assert len(index) == 0
    assert not index.take_new().series


def test_rows_of_a_failed_commit_are_taken_again_in_order() -> None:
    index = Index()
    index.resolve(1, labels("a"))
    first = index.take_new()
    index.resolve(1, labels("b"))
    index.put_back(first)
    assert [sid for sid, _, _ in index.take_new().series] == [1, 2]


def test_removed_series_leave_no_trace() -> None:
    index = Index()
    sets: list[Labels] = [labels("m", gpu=str(i)) for i in range(5)]
    ids = [index.resolve(1, one) for one in sets]
    epoch = index.epoch
    with index.removing(ids[:4]) as orphans:
        assert len(orphans) == 4
    assert index.epoch > epoch
    assert index.label_names() == ["__name__", "gpu"]
    assert index.label_values("gpu") == ["4"]
    assert index.select([Matcher("gpu", MatchOp.REGEX, "[0-9]")]).tolist() == [ids[4]]
    assert index.unknown(np.array(ids)).tolist() == ids[:4]
    again = index.resolve(1, sets[0])
    assert again not in ids


def test_a_removal_that_fails_changes_nothing() -> None:
    index = Index()
    sid = index.resolve(1, labels("m"))
    with pytest.raises(RuntimeError), index.removing([sid]):
        raise RuntimeError
    assert index.select([]).tolist() == [sid]


def test_a_series_that_two_targets_write_is_found_under_both() -> None:
    index = Index()
    sids = np.array([index.resolve(1, labels("m", gpu=str(i))) for i in range(3)], np.int64)
    index.claim(2, sids[1:2])
    groups = index.by_target(index.select([]))
    assert {target: ids.tolist() for target, ids in groups.items()} == {1: sids.tolist(), 2: [int(sids[1])]}


def test_new_series_are_found_before_and_after_a_rebuild_of_the_postings() -> None:
    index = Index()
    for i in range(3000):
        index.resolve(1, labels("m", gpu=str(i)))
        if i % 500 == 0:
            assert index.select([Matcher("gpu", MatchOp.EQUAL, str(i))]).tolist() == [i + 1]
    assert len(index.select([Matcher("gpu", MatchOp.NOT_EQUAL, "7")])) == 2999


def test_cached_regexes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_pairs, "MAX_CACHED_REGEXES", 20)
    monkeypatch.setattr(series_pairs, "MAX_CACHED_REGEX_PAIRS", 300)
    index = Index()
    for number in range(100):
        index.resolve(1, labels("m", pod=f"pod-{number}"))
    for number in range(50):
        found = index.select([Matcher("pod", MatchOp.REGEX, f"pod-.*{number}")])
        assert number + 1 in found
        assert index.cached_regexes()[0] <= 20
    for number in range(50):
        assert len(index.select([Matcher("pod", MatchOp.REGEX, f".*(pod|{number}).*")])) == 100
        regexes, pairs = index.cached_regexes()
        assert (regexes, pairs) <= (20, 300)
        assert regexes
    # What is cached knows later values too.
    sid = index.resolve(1, labels("m", pod="pod-new"))
    assert sid in index.select([Matcher("pod", MatchOp.REGEX, ".*(pod|49).*")])


def test_a_regular_expression_over_many_values_can_be_stopped() -> None:
    index = Index()
    for number in range(3000):
        index.resolve(1, labels("m", pod=f"pod-{number}"))
    calls = 0

    def admit(series: int, samples: int) -> None:
        nonlocal calls
        assert (series, samples) == (0, 0)
        calls += 1
        if calls == 3:
            raise TimeoutError

    every = [Matcher("pod", MatchOp.REGEX, "p.d-[0-9]+")]
    with pytest.raises(TimeoutError):
        index.select(every, admit)
    assert index.cached_regexes() == (0, 0), "half a result is not kept"
    assert len(index.select(every)) == 3000


def test_the_index_is_not_locked_while_values_are_tested() -> None:
    """A thread that adds a series would wait for a hostile regular expression."""
    index = Index()
    for number in range(10):
        index.resolve(1, labels("m", pod=f"pod-{number}"))
    added: list[int] = []

    def admit(series: int, samples: int) -> None:
        thread = threading.Thread(target=lambda: added.append(index.resolve(1, labels("m", pod="pod-new"))))
        thread.start()
        thread.join(10)

    assert len(index.select([Matcher("pod", MatchOp.REGEX, "p.d-[0-9]+")], admit)) == 10
    assert added == [11]
    assert len(index.select([Matcher("pod", MatchOp.REGEX, "p.d-[n0-9].*")])) == 11


def test_sorted_label_values_are_kept_until_they_change() -> None:
    index = Index()
    for pod in ("b", "a"):
        sid = index.resolve(1, labels("m", pod=pod))
    assert index.known_label_values("pod") is None
    assert index.label_values("pod") == ["a", "b"]
    assert index.known_label_values("pod") == ["a", "b"]
    index.resolve(1, labels("m", pod="c"))
    assert index.known_label_values("pod") is None
    assert index.label_values("pod") == ["a", "b", "c"]
    with index.removing([sid]):
        pass
    assert index.known_label_values("pod") is None
    assert index.label_values("pod") == ["b", "c"]
    index.resolve(1, labels("m", pod="a"))
    assert index.label_values("pod") == ["a", "b", "c"]
    assert index.label_values("absent") == []
