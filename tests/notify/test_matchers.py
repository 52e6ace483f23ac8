"""Matchers: both of Alertmanager's parsers, and what matches."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.judge.notify.alert_matchers import (
    MAX_MATCHER_CHARACTERS,
    AlertMatcher,
    match_all,
    matchers_text,
    parse_matcher,
    parse_matchers,
    sorted_matchers,
)
from gpuscope.model.series import MatchOp


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", 'a="b"'),
        ("a = b", 'a="b"'),
        ('a!="b c"', 'a!="b c"'),
        ("a=~b.*", 'a=~"b.*"'),
        ("a!~b", 'a!~"b"'),
        ('"a b"="c"', '"a b"="c"'),
        ("a.b=c", 'a.b="c"'),
        ('"\\u00e9\\x41"=b', 'éA="b"'),
        ('"\\xc3\\xa9\\303\\251\\U0001f600"=b', 'éé😀="b"'),
        ('a="\\"\\n\\\\"', 'a="\\"\\n\\\\"'),
        ("a=b c", 'a="b c"'),  # only the classic parser takes it
        ("a=", 'a=""'),
        ("a=b,c=d", 'a="b,c=d"'),  # one matcher: so does the classic parser
        ("a=\\d", 'a="\\\\d"'),
        ("é=ü", 'é="ü"'),
    ],
)
def test_one_matcher(text: str, expected: str) -> None:
    assert str(parse_matcher(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "{}"),
        ("{}", "{}"),
        ('{a="b", c=~"d,e",}', '{a="b",c=~"d,e"}'),
        ("a=b,c!=d", '{a="b",c!="d"}'),
        ("{a=b", '{a="b"}'),
        (" a=b\u2003,c=d\u3000", '{a="b\u2003",c="d"}'),  # only the end is trimmed
        ("a=b\x1c", '{a="b\x1c"}'),  # no white space in Go
    ],
)
def test_several_matchers(text: str, expected: str) -> None:
    assert matchers_text(parse_matchers(text)) == expected


@pytest.mark.parametrize(
    "name", ["\\q", "\\xc3", "\\xf", "\\400", "\\ud800", "\\U00110000", "\\UFFFFFFFF", "\\"]
)
def test_what_is_no_escape_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        parse_matcher(f'"{name}"=b')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a=~(",
        "=b",
        "{a=b}",
        'a="b',
        'a=b"c',
        'é="b',
        "é=b c",
        "a==b=",
        "x" * (MAX_MATCHER_CHARACTERS + 1),
    ],
)
def test_what_is_no_matcher_is_refused(text: str) -> None:
    if text == "a==b=":
        assert parse_matcher(text).value == "=b="  # the classic parser's reading
        return
    with pytest.raises(ValueError):
        parse_matcher(text)


def test_a_missing_label_is_empty_and_a_regex_matches_the_whole_value() -> None:
    assert AlertMatcher("a", MatchOp.EQUAL, "").matches({})
    assert not AlertMatcher("a", MatchOp.NOT_EQUAL, "").matches({})
    assert AlertMatcher("a", MatchOp.REGEX, "b|cd").matches({"a": "cd"})
    assert not AlertMatcher("a", MatchOp.REGEX, "b|c").matches({"a": "cd"})
    assert AlertMatcher("a", MatchOp.NOT_REGEX, "b").matches({"a": "bb"})
    assert match_all((), {"a": "b"})


def test_a_dot_does_not_match_a_line_break() -> None:
    for pattern, is_match in ((".*", False), ("(?s:.*)", True), ("(?s).*", True), ("x.y|x\ny", True)):
        assert AlertMatcher("a", MatchOp.REGEX, pattern).matches({"a": "x\ny"}) is is_match
        assert AlertMatcher("a", MatchOp.NOT_REGEX, pattern).matches({"a": "x\ny"}) is not is_match


def test_the_order_of_matchers_is_alertmanagers() -> None:
    found = sorted_matchers(parse_matchers("b=1,a!=2,a=2,a=~1"))
    assert matchers_text(found) == '{a=~"1",a="2",a!="2",b="1"}'


NAMES = st.text(min_size=1, max_size=10).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)


@given(NAMES, st.sampled_from([MatchOp.EQUAL, MatchOp.NOT_EQUAL]), NAMES)
def test_a_printed_matcher_reads_back(name: str, op: MatchOp, value: str) -> None:
    matcher = AlertMatcher(name, op, value)
    if "\n" in name + value or not (name + value).isprintable():
        return  # printed with escapes that only the other parser has
    assert parse_matcher(str(matcher)) == matcher


@given(st.text(alphabet="{}!=~,\\\"'`abé \n", max_size=20))
def test_any_text_is_a_matcher_or_a_value_error(text: str) -> None:
    for parse in (parse_matcher, parse_matchers):
        with suppress(ValueError):
            parse(text)
