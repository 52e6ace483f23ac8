"""The PromQL parser: any text gives a tree or a `BadQueryError`, and a tree's canonical form can be parsed."""

from __future__ import annotations

import contextlib

from gpuscope.history.promql import BadQueryError, format_query, parse
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.promql.lexical import MAX_QUERY_CHARACTERS

SEEDS = (
    b'sum by (node) (rate(watts{gpu=~"0|1",node!="b"}[5m] offset 1h)) / on (node) group_left (x) up @ 17.5',
    b"histogram_quantile(0.99, sum without (a) (rate(wait_bucket[1m:10s] @ end())))",
    b'label_replace(up, "a", "$1 x", "b", "(.*)") or topk(3, -x ^ 2) > bool 0x1F',
    b"-1_000e3 + +inf and nan unless atan2 atan2 up # comment\n",
    b'{"a.b", c="\\u00e9\\x41", d=~`x\\`} == ignoring (c) vector(time())',
    b"quantile_over_time(0.5, x[1h30m]) * count_values('v', x) offset -5m",
)
TOKENS = tuple(
    b"( ) { } [ ] , : = != =~ !~ \" ' ` # + - * / % ^ == >= < bool by without on ignoring group_left offset @ "
    b"start() end() step() range() min( max( 5m 1h30m 1_0 0x1F 1e3 NaN Inf up sum rate( topk( label_replace( "
    b"absent( scalar( count_values( histogram_count( atan2 and or unless \\u00e9 \\xff".split()
)


def run(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    try:
        parse(text)
    except BadQueryError:
        pass
    else:
        formatted = format_query(text)  # longer than the text: each level of nesting is indented
        if len(formatted) <= MAX_QUERY_CHARACTERS:
            parse(formatted)
    with contextlib.suppress(BadQueryError):
        parse_selector(text)
