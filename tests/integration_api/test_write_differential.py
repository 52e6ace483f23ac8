"""Remote-write requests with unusual series: the same status, count and stored series as a real Prometheus."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence

import cramjam
import pytest

from tests.engines import running_prometheus
from tests.integration_api.servers import running_gpuscope
from tests.remote_write.write_v2 import RequestV2, SeriesV2, message, sample

NOW_MS = int(time.time() * 1000)
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
Labels = Sequence[tuple[str, str]]

SERIES: dict[str, Labels] = {
    "usual": [("__name__", "a"), ("x", "1")],
    "duplicate": [("__name__", "b"), ("x", "1"), ("x", "2")],
    "same_twice": [("__name__", "c"), ("x", "1"), ("x", "1")],
    "empty_name": [("__name__", "d"), ("", "1")],
    "empty_value": [("__name__", "e"), ("x", "")],
    "no_metric_name": [("x", "1")],
    "no_labels": [],
    "empty_metric_name": [("__name__", ""), ("y", "1")],
    "unsorted": [("z", "1"), ("__name__", "f"), ("x", "2")],
    "utf8_names": [("__name__", "g h"), ("x-y", "1")],
}


def series_v1(labels: Labels, samples: Sequence[tuple[int, float]]) -> bytes:
    pairs = (message(1, message(1, name.encode()) + message(2, value.encode())) for name, value in labels)
    return message(1, b"".join([*pairs, *(message(2, sample(at, value)) for at, value in samples)]))


def requests() -> Iterator[tuple[str, int, bytes]]:
    """Each with a good series after the unusual one; the versions at different times, so that none repeats."""
    for name, labels in SERIES.items():
        for kind, count in (("sample", 1), ("empty", 0)):
            good = [("__name__", f"beside_{name}_{kind}")]
            v1 = series_v1(labels, [(NOW_MS, 1.0)] * count) + series_v1(good, [(NOW_MS, 2.0)])
            yield f"v1_{name}_{kind}", 1, v1
            v2 = RequestV2().add(SeriesV2(labels, [(NOW_MS + 1, 1.0)] * count))
            yield f"v2_{name}_{kind}", 2, v2.add(SeriesV2(good, [(NOW_MS + 1, 2.0)])).encode()
    not_utf8 = message(
        1, message(1, message(1, b"__name__") + message(2, b"\xff")) + message(2, sample(NOW_MS, 1))
    )
    yield "v1_not_utf8", 1, not_utf8 + series_v1([("__name__", "beside_not_utf8")], [(NOW_MS, 1.0)])
    yield "v1_nothing", 1, b""
    yield "v2_nothing", 2, b""


REQUESTS = {name: (version, body) for name, version, body in requests()}


def send(url: str, version: int, body: bytes) -> tuple[int, str | None]:
    proto = ";proto=io.prometheus.write.v2.Request" if version == 2 else ""
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": f"application/x-protobuf{proto}",
        "X-Prometheus-Remote-Write-Version": "2.0.0" if version == 2 else "0.1.0",
    }
    packed = bytes(cramjam.snappy.compress_raw(body))
    request = urllib.request.Request(f"{url}/api/v1/write", packed, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers[WRITTEN]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers[WRITTEN]


def stored(url: str) -> list[object]:
    query = urllib.parse.urlencode({"match[]": '{__name__=~".+"}', "start": NOW_MS / 1000 - 60})
    with urllib.request.urlopen(f"{url}/api/v1/series?{query}", timeout=10) as answer:
        return sorted(json.load(answer)["data"], key=str)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_prometheus() as theirs, running_gpuscope(tmp_path_factory.mktemp("data")) as ours:
        yield ours, theirs


@pytest.mark.engine("prometheus")
@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_answer_and_the_same_series(both: tuple[str, str], name: str) -> None:
    ours, theirs = both
    our_answer, their_answer = send(ours, *REQUESTS[name]), send(theirs, *REQUESTS[name])
    if name.startswith("v2_") and name.endswith("_empty") and their_answer[0] == 204:
        # Up to 3.5 Prometheus accepted what the protocol forbids; 3.14 does not.
        their_answer = (400, their_answer[1])
    assert our_answer == their_answer
    assert stored(ours) == stored(theirs)
