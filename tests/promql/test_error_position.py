"""A query that the grammar refuses: the message has the position that Prometheus 3.14 gives."""

from __future__ import annotations

import pytest

from gpuscope.history.promql.lexical import MAX_CHARACTERS
from gpuscope.history.promql.parse import parse
from gpuscope.history.promql.syntax import BadQueryError

END = "unexpected end of input"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("up ==", f"1:6: parse error: {END}"),
        ("1 + ", f"1:5: parse error: {END}"),
        ("sum(up) > bool", f"1:15: parse error: {END}"),
        ("up unless on (a)", f"1:17: parse error: {END}"),
        ("max by (instance) ", f"1:19: parse error: {END}"),
        ("sum() by", f"1:9: parse error: {END}"),
        ("foo bar", '1:5: parse error: unexpected "bar"'),
        ("up == == 1", '1:7: parse error: unexpected "=="'),
        ("up{a=}", '1:6: parse error: unexpected "}"'),
        ("up{a='b' c='d'}", '1:10: parse error: unexpected "c"'),
        ("sum(rate(up[5m])) by (a b)", '1:25: parse error: unexpected "b"'),
        ("up\n  and on (x y) up", '2:13: parse error: unexpected "y"'),
        ("(up + )", '1:7: parse error: unexpected ")"'),
        ("a + b c # foo\n + 1", '1:7: parse error: unexpected "c"'),
        ("label_replace(up, 'a' 'b', 'c', 'd')", "1:23: parse error: unexpected \"'b'\""),
        ("up[5m:1m] up", '1:11: parse error: unexpected "up"'),
        ("*", '1:1: parse error: unexpected "*"'),
    ],
)
def test_the_wrong_token_is_named(query: str, message: str) -> None:
    with pytest.raises(BadQueryError) as caught:
        parse(query)
    assert str(caught.value) == message


def test_a_long_query_is_refused_without_a_search() -> None:
    with pytest.raises(BadQueryError, match=r"^parse error: invalid promql query$"):
        parse(f"up{{a='{'x' * MAX_CHARACTERS}'}} bar")
