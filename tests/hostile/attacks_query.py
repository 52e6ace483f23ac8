"""Attacks with queries: label text, count_values, long windows, large responses, many selectors, nesting."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

from tests.hostile.catalogue import Attack
from tests.hostile.senders import ATTACKER, connections
from tests.hostile.victim import Victim, Watch

AT = 1_700_000_000
FORM = {"content-type": "application/x-www-form-urlencoded"}


def _ask(victim: Victim, query: str, path: str = "query", **more: object) -> tuple[int, bytes]:
    body = urlencode({"query": query, "time": AT, **more}).encode()
    return victim.request("POST", f"/api/v1/{path}", body, FORM, ATTACKER)


def _during(victim: Victim, watch: Watch, queries: list[str], **more: Any) -> list[int]:
    """Return the statuses of concurrent queries; the observers are served while they run."""
    with ThreadPoolExecutor(len(queries)) as attackers:
        answers = [attackers.submit(_ask, victim, query, **more) for query in queries]
        watch.meanwhile()
        return [answer.result()[0] for answer in answers]


def nested(function: str, inner: str, depth: int) -> str:
    for _ in range(depth):
        inner = function.replace("{}", inner)
    return inner


REPLACED = nested(
    'label_replace({},"a","$1$1$1$1$1$1$1$1$1$1","a","(.*)")', 'label_replace(vector(1),"a","x","","")', 9
)
LONG_WINDOW = "sum_over_time(vector(time())[50d:1s])"
DEEP_SCALAR = f"sum_over_time(vector({nested('time()+({})', 'time()', 150)})[50d:1s])"
LARGE_ANSWER = "vector(time())[10d:1s]"


def _label_replace(victim: Victim, watch: Watch) -> None:
    assert set(_during(victim, watch, [REPLACED] * 4)) == {422}
    assert victim.limit_reached("query_max_label_bytes") >= 4


def _label_join(victim: Victim, watch: Watch) -> None:
    query = nested(
        'label_join({},"a","","a","a","a","a","a","a","a","a","a","a")',
        'label_replace(vector(1),"a","x","","")',
        9,
    )
    assert set(_during(victim, watch, [query] * 4)) == {422}


def _count_values(victim: Victim, watch: Watch) -> None:
    """11,000 values at 11,000 steps are a table of 121 million numbers."""
    span = {"path": "query_range", "start": AT - 11_000, "end": AT, "step": 1}
    statuses = _during(victim, watch, ['count_values("v", vector(time()))'] * 4, **span)
    assert set(statuses) == {422}


def _long_windows(victim: Victim, watch: Watch) -> None:
    assert set(_during(victim, watch, [LONG_WINDOW] * 4, timeout="3s")) <= {422, 503}


def _deep_scalars(victim: Victim, watch: Watch) -> None:
    assert set(_during(victim, watch, [DEEP_SCALAR] * 2)) <= {422, 503}


def _unread_answers(victim: Victim, watch: Watch) -> None:
    head = f"GET /api/v1/query?time={AT}&query={quote(LARGE_ANSWER)} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with connections(victim, 20, head.encode()):
        watch.meanwhile()
        victim.until(lambda: victim.limit_reached("query_max_large_responses") > 0, "a refusal")
        assert _ask(victim, "sum(up)")[0] == 200


def _many_selectors(victim: Victim, watch: Watch) -> None:
    body = urlencode({"match[]": [f"x{number}" for number in range(21_182)]}, doseq=True).encode()
    with ThreadPoolExecutor(1) as attacker:
        answers = [
            attacker.submit(victim.request, "POST", "/api/v1/series", body, FORM, ATTACKER) for _ in range(5)
        ]
        watch.meanwhile()
        assert {answer.result()[0] for answer in answers} == {400}


def _deep_queries(victim: Victim, watch: Watch) -> None:
    terms = " + ".join(["1"] * 390)
    status, body = _ask(victim, terms, "parse_query")
    assert (status, json.loads(body)["status"]) == (200, "success")
    for query in ("(" * 5000 + "1" + ")" * 5000, "-" * 5000 + "1", "x[" + "(" * 5000 + "1", '"' + "\\n" * 9000):
        for path in ("query", "parse_query", "format_query"):
            assert _ask(victim, query, path)[0] == 400
    watch.meanwhile()


ATTACKS = (
    Attack(
        "a label that label_replace repeats",
        "four queries with nine nested label_replace that repeat a label ten times each: 1 GB",
        "422; the label is never created",
        _label_replace,
    ),
    Attack(
        "a label that label_join repeats",
        "four queries with nine nested label_join that repeat a label ten times each",
        "422",
        _label_join,
    ),
    Attack(
        "count_values of many values at many steps",
        "four range queries that count 11,000 different values at 11,000 steps",
        "422 before the memory is allocated",
        _count_values,
    ),
    Attack(
        "windows of four million samples",
        "four sums over 50 days of seconds, with a time limit of 3 s",
        "each ends at its time limit or is refused",
        _long_windows,
        slow=True,
    ),
    Attack(
        "scalars nested 150 deep over a long subquery",
        "two queries that would hold 150 times four million numbers",
        "422, or 503 while the other query uses the memory",
        _deep_scalars,
        slow=True,
    ),
    Attack(
        "large responses that are not read",
        "20 connections that request 20 MB of JSON each and read nothing",
        "a few are sent, the others are refused with 503; small queries are answered",
        _unread_answers,
        slow=True,
    ),
    Attack(
        "21,182 selectors",
        "five requests for series with 21,182 match[] each",
        "400; none is parsed on the event loop",
        _many_selectors,
    ),
    Attack(
        "deep expressions",
        "390 terms to parse_query; 5,000 parentheses, signs and escapes to the parser",
        "200 or 400, never 500",
        _deep_queries,
    ),
)
