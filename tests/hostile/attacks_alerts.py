"""Attacks on Alertmanager's API and on the lists of rules: many or large alerts and silences, filters, JSON."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlencode

from gpuscope.base.time_text import to_rfc3339
from tests.hostile.catalogue import Attack
from tests.hostile.senders import ATTACKER, connections
from tests.hostile.victim import Victim, Watch

JSON = {"content-type": "application/json"}
ALERTS, SILENCES = "/api/v2/alerts", "/api/v2/silences"


def _post(victim: Victim, path: str, document: object) -> tuple[int, str]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    status, text = victim.request("POST", path, body, JSON)
    return status, text.decode()


def _alert(number: int, size: int = 0) -> dict[str, object]:
    return {"labels": {"alertname": "Flood", "n": str(number)}, "annotations": {"text": "x" * size}}


def _silence(name: str, value: str, *, is_regex: bool = False, comment: str = "c") -> dict[str, object]:
    return {
        "matchers": [{"name": name, "value": value, "isRegex": is_regex}],
        "startsAt": to_rfc3339(time.time() - 60, "seconds"),
        "endsAt": to_rfc3339(time.time() + 3600, "seconds"),
        "createdBy": "attacker",
        "comment": comment,
    }


def _many_alerts(victim: Victim, watch: Watch) -> None:
    status, text = 0, ""
    for part in range(10):
        status, text = _post(victim, ALERTS, [_alert(part * 10_000 + n) for n in range(10_000)])
        if status != 200:
            break
    assert (status, "max_alerts" in text) == (503, True), text
    request = f"GET {ALERTS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with connections(victim, 30, request, [ATTACKER]):
        watch.meanwhile()
    assert victim.limit_reached("max_alerts") > 0


def _large_alerts(victim: Victim, watch: Watch) -> None:
    status, text = 0, ""
    for part in range(20):
        status, text = _post(victim, ALERTS, [_alert(part * 200 + n, 60_000) for n in range(200)])
    watch.meanwhile()
    assert (status, "max_alerts" in text) == (503, True), text
    request = f"GET {ALERTS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with connections(victim, 30, request, [ATTACKER]):
        watch.meanwhile()


def _silences_of_patterns(victim: Victim, watch: Watch) -> None:
    assert _post(victim, ALERTS, [_alert(n, 500) for n in range(5_000)])[0] == 200
    refused = ""
    for number in range(1_010):
        status, text = _post(victim, SILENCES, _silence("n", f"(.*a.{{20}}{number}b).*", is_regex=True))
        refused = text if status == 400 else refused
    assert "=~, !~ or !=" in refused
    with ThreadPoolExecutor(8) as pool:
        lists = [pool.submit(victim.get, ALERTS) for _ in range(8)]
        watch.meanwhile()
        assert [one.result()[0] for one in lists] == [200] * 8
    assert victim.limit_reached("max_silence_patterns") > 0


def _large_silences(victim: Victim, watch: Watch) -> None:
    matchers = [{"name": f"n{n}", "value": "v", "isRegex": False} for n in range(100_000)]
    for document in (
        _silence("a", "v", comment="x" * 15_000_000),
        {**_silence("a", "v"), "matchers": matchers},
    ):
        status, text = _post(victim, SILENCES, document)
        assert (status, "maximum size" in text) == (400, True), text
    watch.meanwhile()
    assert victim.limit_reached("max_silence_bytes") == 2


def _costly_filters(victim: Victim, watch: Watch) -> None:
    assert _post(victim, ALERTS, [_alert(n) for n in range(1_000)])[0] == 200
    spaces = "n=x" + "+" * 50_000 + "y%22"
    classes = r"(\\pL{1,99})" * 3
    letters = "&".join(f"filter={quote(f'n=~{classes}')}" for _ in range(90))
    repeated = "filter=" + quote('n=~"((a{1,30}){1,30}){1,30}"')
    for query in (f"filter={spaces}", letters, repeated, "receiver=" + "(" * 30_000):
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(victim.get, f"{path}?{query}") for path in (ALERTS, f"{ALERTS}/groups") * 2]
            watch.meanwhile()
            assert {one.result()[0] for one in answers} <= {200, 400}


def _json_bombs(victim: Victim, watch: Watch) -> None:
    megabytes = 15_000_000
    for body in (
        b"[" + b"[]," * (megabytes // 3) + b"[]]",
        b"[" + b"1," * (megabytes // 2) + b"1]",
        b"[{" + b'"a":1,' * (megabytes // 6) + b'"labels":{}}]',
        b'{"labels":' * (megabytes // 10),
        b"[" * megabytes,
    ):
        for path in (ALERTS, SILENCES):
            assert _post(victim, path, body)[0] == 400
    deep = b"[" * 200_000 + b"]" * 200_000
    assert _post(victim, ALERTS, deep)[0] == 400
    many = [{"labels": {"a": ""}}] * 100_000
    assert _post(victim, ALERTS, many)[0] == 400
    watch.meanwhile()
    assert victim.limit_reached("max_alerts_request_values") > 0


def _rule_filters(victim: Victim, watch: Watch) -> None:
    selectors = urlencode([("match[]", f'{{a=~"(x|y){number}.+[a-z]{{1,50}}"}}') for number in range(900)])
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(victim.get, f"/api/v1/rules?{selectors}") for _ in range(6)]
        watch.meanwhile()
        assert [one.result()[0] for one in answers] == [200] * 6


ATTACKS = (
    Attack(
        "many alerts",
        "100,000 alerts, and 30 connections that request the list of alerts and read nothing",
        "503 with the name of the limit above 37,500; lists are encoded while they are sent",
        _many_alerts,
        slow=True,
    ),
    Attack(
        "large alerts",
        "4,000 alerts of 60 kB, 240 MB in all, and 30 connections that request the list and read nothing",
        "each 2 KiB counts as one alert: 100 MiB are kept",
        _large_alerts,
        slow=True,
    ),
    Attack(
        "silences of regular expressions",
        "1,010 silences with regular expressions of many states, 5,000 alerts, and eight lists of alerts",
        "1,000 are kept, each with at most 300 KiB of states; the notifier's lock is free between alerts",
        _silences_of_patterns,
        slow=True,
    ),
    Attack(
        "large silences",
        "silences with a comment of 15 MB or 100,000 matchers",
        "400",
        _large_silences,
    ),
    Attack(
        "costly filters of alerts",
        "matchers with 50,000 spaces, repeated classes of all letters, nested repetitions, 30,000 parentheses",
        "200 or 400 without blocking other clients",
        _costly_filters,
        slow=True,
    ),
    Attack(
        "JSON bombs to Alertmanager's API",
        "15 MB of empty lists, numbers, repeated keys or opening brackets; 100,000 invalid alerts",
        "400; values are counted before they are read",
        _json_bombs,
        slow=True,
    ),
    Attack(
        "many selectors of rules",
        "six requests for the list of rules with 900 match[] of regular expressions each",
        "each expression is compiled once, in a thread",
        _rule_filters,
        slow=True,
    ),
)
