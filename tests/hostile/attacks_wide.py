"""Attacks with queries over 20,000 series, which a remote writer can create with default limits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from tests.hostile.attacks_query import FORM, nested
from tests.hostile.catalogue import Attack
from tests.hostile.senders import ATTACKER
from tests.hostile.victim import Victim, Watch
from tests.remote_write.write_v2 import packed

SERIES = 20_000
THREAD_QUERY = "/api/v1/query?query=up%20%40%20end()"
"""Of the other client: small, but evaluated in the threads that the attack uses, because of its modifier."""
SAMPLES = 5
STEP_SECONDS = 15
WRITE = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}


def _fill(victim: Victim) -> None:
    """Write 20,000 series with five samples each."""
    labels = [
        encode_labels([("__name__", "wide"), ("host", f"host-{n % 500}"), ("id", f"series-{n:05d}")])
        for n in range(SERIES)
    ]
    newest = time.time_ns() // 1_000_000
    for number in reversed(range(SAMPLES)):
        at = newest - number * STEP_SECONDS * 1000
        for first in range(0, SERIES, 5_000):
            part = range(first, first + 5_000)
            body = packed(encode_samples((labels[n], at, float(n)) for n in part))
            status, text = victim.request("POST", "/api/v1/write", body, WRITE)
            assert status == 204, text


def _send(victim: Victim, watch: Watch, count: int, path: str, **form: object) -> set[int]:
    """Return the statuses of equal concurrent requests; the observers are served while they run."""
    body = urlencode(form, doseq=True).encode()
    with ThreadPoolExecutor(count) as attackers:
        answers = [attackers.submit(victim.request, "POST", path, body, FORM, ATTACKER) for _ in range(count)]
        watch.meanwhile()
        return {answer.result()[0] for answer in answers}


def _label_replace(victim: Victim, watch: Watch) -> None:
    query = nested('label_replace({},"a","$1-$1","id","(.*)")', "wide", 30)
    assert _send(victim, watch, 20, "/api/v1/query", query=query, timeout="30s") <= {200, 422, 503}


def _count_values(victim: Victim, watch: Watch) -> None:
    assert _send(victim, watch, 20, "/api/v1/query", query='count_values("v", wide * time())') <= {200, 503}


def _query_range(victim: Victim, watch: Watch) -> None:
    now = time.time()
    span = {"start": now - 900, "end": now, "step": 5}
    assert _send(victim, watch, 12, "/api/v1/query_range", query="wide", **span) <= {200, 422, 503}


def _sum_over_time(victim: Victim, watch: Watch) -> None:
    assert _send(victim, watch, 20, "/api/v1/query", query="sum_over_time(wide[30d])") <= {200, 422, 503}


def _many_series(victim: Victim, watch: Watch) -> None:
    selectors = [f'wide{{id!="{n}"}}' for n in range(900)]
    assert _send(victim, watch, 8, "/api/v1/series", **{"match[]": selectors}) <= {200, 503}


def _many_regexes(victim: Victim, watch: Watch) -> None:
    selectors = [f'wide{{id=~"(s|t).*[0-9]+{n}|{n}[a-z]+"}}' for n in range(900)]
    assert _send(victim, watch, 4, "/api/v1/series", **{"match[]": selectors}) == {503}
    assert victim.limit_reached("query_timeout") > 0


ATTACKS = (
    Attack(
        "nested label_replace over many series",
        "20 queries with 30 nested label_replace over 20,000 series",
        "each is answered, waits for memory, or is refused",
        _label_replace,
        prepare=_fill,
        question=THREAD_QUERY,
        slow=True,
    ),
    Attack(
        "count_values over many series",
        "20 queries that count 20,000 different values",
        "each is answered, waits for memory, or is refused",
        _count_values,
        prepare=_fill,
        question=THREAD_QUERY,
        slow=True,
    ),
    Attack(
        "range queries over many series",
        "12 queries for 181 points of each of 20,000 series",
        "each is answered, waits for memory, or is refused",
        _query_range,
        prepare=_fill,
        question=THREAD_QUERY,
        slow=True,
    ),
    Attack(
        "long ranges of many series",
        "20 queries for the sum over 30 days of 20,000 series",
        "memory is reserved before samples are loaded",
        _sum_over_time,
        prepare=_fill,
        question=THREAD_QUERY,
        slow=True,
    ),
    Attack(
        "900 selectors of many series",
        "eight requests for series with 900 match[], each of which matches 20,000 series",
        "each series is read once; other clients are served",
        _many_series,
        prepare=_fill,
        question=THREAD_QUERY,
        slow=True,
    ),
    Attack(
        "900 regular expressions over many values",
        "four requests for series with 900 match[], each with another regular expression over 20,000 values",
        "the query time limit ends them, also within a regular expression; other clients are served",
        _many_regexes,
        ("server", "--query-timeout", "3s"),
        prepare=_fill,
        question=THREAD_QUERY,
        slow=True,
    ),
)
