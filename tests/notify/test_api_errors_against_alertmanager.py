"""Wrong requests to Alertmanager's API v2, here and in a real Alertmanager: the same status and shape of error.

The shape is that of the body: nothing, a text, or an object with `code` and `message`. Where `code` is the
schema's own (601 type, 602 required, 612 too few), the message is the same too. Left out on purpose: an unknown
path, which is answered as Prometheus does; a path with a slash at its end; null in a list, where Alertmanager
drops the connection.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tests.notify.test_api_against_alertmanager import (
    ALERTS,
    ENDS,
    NOW_SILENCE,
    SILENCE,
    STARTS,
    both_running,
)

LEFT_OUT = object()
ALERT = {"labels": {"alertname": "P"}, "startsAt": STARTS, "endsAt": ENDS}
MATCHER = SILENCE["matchers"][0]
UNKNOWN_ID = "13db969f-0ea0-40b8-b51d-b731c5010945"
URLS = (
    "http://ok.example/x?y=1", "nonsense", "/relative", "ftp://x/y", "http://", "http://a b/",
    "mailto:a@b", "javascript:alert(1)", "http://[::1", "http://[::1]:9090/", "http://[fe80::1%25en0]/",
    "http://[1.2.3.4]/", "http://[::1]x/", "a[::1]", 5, None, "", "//host/x", "%zz", "http://h/%zz",
    "http://h/?%zz", "http://h/#a b", "http://h/graph?g0.expr=up%20%3D%3D%200&g0.tab=1", "http:///path",
    "http://é/ü", "urn:isbn:1", "*", ":x", "http://h:port/", "http://h:99999/", "http://u:p@h/",
    "http://u ser@h/", "http://h%41/", "http://h%C3%A9/", "http://a:1:2/", "db://a:1,b:2/",
    "http://h\x7f/", "1http://h/",
)  # fmt: skip
TIMES: tuple[Any, ...] = (
    "2020-01-01", "2020-01-01T00:00:00", "2020-01-01T00:00", "2020-01-01T00:00Z", "2020-01-01 00:00:00",
    "now", 5, None, "", "2020-01-01T00:00:00.123456789Z", "2020-01-01t00:00:00z",
    "2020-01-01T00:00:00+02:00", True, {}, [], "0001-01-01T00:00:00Z", "2020-13-01T00:00:00Z",
    "2020-01-01 00:00:00Z", "2020-02-30T00:00:00Z", "1960-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
    "2020-01-01T24:00:00Z", "2020-01-01T00:00:00+0200", "2020-01-01T00:00:00.123+0200",
    "2020-01-01T00:00:00.000-07:00",
)  # fmt: skip
LABEL_SETS: tuple[Any, ...] = (
    {}, {"a": ""}, {"a": 5}, {"a": None}, [], "x", None, {"a-b": "x"}, {"": "x"}, {"1a": "x"},
    {"é": "x"}, {"a": "x", "b": {}}, {"__name__": "x"}, {"a b": "x"},
)  # fmt: skip
RAW_BODIES = (
    b"", b"{", b"[", b"[]", b"null", b"\xff", b"[NaN]", b" [ ] ", b"5", b'"x"',
    b'[{"labels":{"a":"b"}}] trailing', b'[{"labels":{"a":"b"}}', b'[{"labels":{"a":"\xff"}}]',
    b'[{"labels":{"a":"\\ud800"}}]', b"[5]", b"[[]]", b'[{"labels":{"a":"b"},"startsAt":NaN}]',
    b'[{"labels":{"a":"b"},"unknown":1}]', b'[{"annotations":{}}]',
)  # fmt: skip
MEDIA_TYPES = (
    "", "text/plain", "application/json; charset=utf-8", "application/x-www-form-urlencoded",
    "APPLICATION/JSON", "nonsense", "application/vnd.api+json", "application/",
)  # fmt: skip
FILTERS = (
    "a=b", "a", "", "(", "{", "{}", "{a=b}", "{a=b,c=d}", "a=b,c=d", "a=~(", "a=~b", "=b", "a==b",
    'a="b', "é=1", "a!~b", "a!=", "a=", "1=1", "a b=c", '"a b"=c', "a=b c", 'a="\\xff"', "a=b,", ",",
    "a={}", "a='b'", "a=`b`",
)  # fmt: skip
SILENCE_IDS = (
    "x", UNKNOWN_ID, UNKNOWN_ID.upper(), UNKNOWN_ID.replace("-", ""), "%20", UNKNOWN_ID[:-1],
    f"%7B{UNKNOWN_ID}%7D", f"urn:uuid:{UNKNOWN_ID}", "%C3%A9", "%22",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def post(path: str, document: object) -> Request:
    return Request("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})


def changed(base: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {key: one for key, one in {**base, **fields}.items() if one is not LEFT_OUT}


def wrong_alerts() -> Iterator[Request]:
    for url in URLS:
        yield post("alerts", [changed(ALERT, generatorURL=url)])
    for time in TIMES:
        yield post("alerts", [changed(ALERT, startsAt=time)])
        yield post("alerts", [changed(ALERT, endsAt=time)])
    for labels in LABEL_SETS:
        yield post("alerts", [changed(ALERT, labels=labels)])
        yield post("alerts", [changed(ALERT, annotations=labels)])
    yield post("alerts", [ALERT, {"labels": {}}])
    yield post("alerts", [{"labels": {}}, {"labels": {"a": "b"}, "generatorURL": "x"}, {}])
    yield post("alerts", [changed(ALERT, startsAt=ENDS, endsAt=STARTS)])
    for body in RAW_BODIES:
        yield Request("POST", "alerts", body, {"Content-Type": "application/json"})
        yield Request("POST", "silences", body, {"Content-Type": "application/json"})
    for media_type in MEDIA_TYPES:
        headers = {"Content-Type": media_type} if media_type else {}
        yield Request("POST", "alerts", json.dumps([ALERT]).encode(), headers)
        yield Request("POST", "silences", json.dumps(SILENCE).encode(), headers)


def wrong_silences() -> Iterator[Request]:
    for key in ("comment", "createdBy", "endsAt", "matchers", "startsAt"):
        for value in (LEFT_OUT, None, "", 5, [], {}):
            yield post("silences", changed(SILENCE, **{key: value}))
    for key in ("name", "value", "isRegex", "isEqual"):
        for value in (LEFT_OUT, None, "", 5, "true", True, False, [], "(", "a-b", "é", "a b"):
            yield post("silences", changed(SILENCE, matchers=[changed(MATCHER, **{key: value})]))
    for silence_id in ("", "x", UNKNOWN_ID, UNKNOWN_ID.upper(), 5, None):
        yield post("silences", changed(SILENCE, id=silence_id))
    annotations: tuple[Any, ...] = (None, {}, {"a": "b"}, {"a": 5}, [], "x")
    for texts in annotations:
        yield post("silences", changed(SILENCE, annotations=texts))
    for pattern, is_regex, is_equal in (
        ("", False, True),
        ("", False, False),
        (".*", True, True),
        (".*", True, False),
    ):
        matcher = {"name": "a", "value": pattern, "isRegex": is_regex, "isEqual": is_equal}
        yield post("silences", changed(SILENCE, matchers=[matcher]))
        yield post("silences", changed(SILENCE, matchers=[matcher, MATCHER]))
    for starts_at, ends_at in ((ENDS, ENDS), (ENDS, STARTS), (STARTS, "2020-01-02T00:00:00Z")):
        yield post("silences", changed(SILENCE, startsAt=starts_at, endsAt=ends_at))
    yield post("silences", changed(SILENCE, matchers=[5]))
    yield post("silences", changed(SILENCE, status={"state": "active"}, updatedAt=STARTS))


def wrong_filters() -> Iterator[Request]:
    for text in map(quote, FILTERS):
        for path in ("alerts", "alerts/groups", "silences"):
            yield Request("GET", f"{path}?filter={text}")
        for path in ("receivers", "alerts", "alerts/groups"):
            yield Request("GET", f"{path}?receiver_matchers={text}")
    for query in ("filter=a%3Db&filter=c%3D(", "filter=%ff", "filter=%zz", "a;b=c", "active=true&active=false"):
        yield Request("GET", f"alerts?{query}")
    for value in ("", "true", "false", "1", "0", "maybe", "TRUE", "yes", "t", "no"):
        for name in ("active", "silenced", "inhibited", "unprocessed", "muted"):
            for path in ("alerts", "alerts/groups"):
                yield Request("GET", f"{path}?{name}={value}")
    for value in ("", "(", "team", "te.*", "*", "é", "a|b", "[", "(?i)TEAM", "(?<x>t)eam", "\\pX"):
        for path in ("alerts", "alerts/groups"):
            yield Request("GET", f"{path}?receiver={quote(value)}")


def wrong_reads() -> Iterator[Request]:
    for silence_id in SILENCE_IDS:
        for method in ("GET", "DELETE", "HEAD", "PUT"):
            yield Request(method, f"silence/{silence_id}")
    for path in ("status", "receivers", "alerts", "silences", "alerts/groups"):
        for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
            yield Request(method, path)
    for path in ("status", "receivers", "alerts/groups", "silence/x"):
        yield Request("POST", path)
    for accept in ("text/html", "*/*", "application/xml", "text/html, application/*;q=0.5"):
        yield Request("GET", "alerts", headers={"Accept": accept})


def answer(url: str, request: Request) -> tuple[int, object]:
    """The status, and of an error its shape; of a success how many things it lists."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(request.method, f"/api/v2/{request.path}", request.body, request.headers)
        reply = connection.getresponse()
        text = reply.read().decode("utf-8", "replace").strip()
    finally:
        connection.close()
    document = json.loads(text) if text else None
    if reply.status < 300:
        return reply.status, len(document) if isinstance(document, list) else type(document)
    if not isinstance(document, dict):
        return reply.status, type(document)
    is_schema = document["code"] > 600
    return reply.status, (sorted(document), document["code"], document["message"] if is_schema else "")


def test_errors_are_those_of_alertmanager(tmp_path: Path) -> None:
    differences = []
    with both_running(tmp_path) as (theirs, ours):
        for api in (theirs, ours):
            api.call("POST", "alerts", ALERTS)
            api.call("POST", "silences", NOW_SILENCE)
        for request in chain(wrong_alerts(), wrong_silences(), wrong_filters(), wrong_reads()):
            expected, found = (answer(api.url, request) for api in (theirs, ours))
            if found != expected:
                differences.append((request, expected, found))
    assert differences == []
