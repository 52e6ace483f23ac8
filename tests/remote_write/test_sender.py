from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler

import cramjam
import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import HttpConfig, split_credentials
from gpuscope.history.remote_write.codec import Labels, WriteDecoder
from gpuscope.history.remote_write.sender import (
    HEADERS,
    FamilySender,
    PostClient,
    RemoteWriteQueue,
    WriteResponse,
    retry_after,
)
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.series import STALE_NAN_BITS
from tests.scrape.exporters import serving, status
from tests.waiting import wait_for

AT = 1_700_000_000_000


class FakeClient:
    """Answers from a list, then 204; remembers what it took."""

    def __init__(self, *answers: WriteResponse | OSError, after: Callable[[], None] = lambda: None) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.attempts = 0
        self.closed = False
        self._after = after

    def post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> WriteResponse:
        assert headers == HEADERS
        self.attempts += 1
        answer = self.answers.pop(0) if self.answers else WriteResponse(204)
        self._after()
        if isinstance(answer, OSError):
            raise answer
        if answer.status == 204:
            self.bodies.append(body)
        return answer

    def close(self) -> None:
        self.closed = True

    def rows(self) -> list[tuple[Labels, int, float]]:
        known: list[Labels] = []

        def resolve(labels: Labels) -> int:
            known.append(labels)
            return len(known) - 1

        decoder = WriteDecoder(resolve)
        rows = []
        for body in self.bodies:
            found = decoder.decode(bytes(cramjam.snappy.decompress_raw(body)))
            names = [known[series] for series in found.series]
            rows += list(zip(names, found.times, found.values, strict=True))
        return rows


def send_all(queue: RemoteWriteQueue) -> None:
    """Runs the sender until what is queued now has been dealt with."""
    queue.stop()
    queue.run()


def one(queue: RemoteWriteQueue, value: float) -> tuple[bytes, int, float]:
    return queue.encode_labels([("__name__", "m")]), AT + int(value), value


def test_batches_in_order_with_external_labels() -> None:
    client = FakeClient()
    queue = RemoteWriteQueue("http://x", client, {"site": "s", "job": "outside"}, batch_samples=3)
    labels = queue.encode_labels([("__name__", "m"), ("job", "own")])
    queue.take((labels, AT + n, float(n)) for n in range(7))
    send_all(queue)
    assert [value for _, _, value in client.rows()] == [float(n) for n in range(7)]
    assert dict(client.rows()[0][0]) == {"__name__": "m", "job": "own", "site": "s"}
    assert len(client.bodies) == 3
    assert queue.counts.sent == 7
    assert client.closed


def test_it_sends_while_it_runs_also_a_batch_that_is_not_full() -> None:
    done = threading.Event()
    client = FakeClient(after=done.set)
    queue = RemoteWriteQueue("http://x", client, batch_seconds=0.01)
    thread = threading.Thread(target=queue.run)
    thread.start()
    queue.take([one(queue, 1.0)])
    assert done.wait(10)
    queue.stop()
    thread.join()
    assert queue.counts.sent == 1


def run_with(client: FakeClient, queue: RemoteWriteQueue, until: Callable[[], bool]) -> None:
    thread = threading.Thread(target=queue.run)
    thread.start()
    try:
        wait_for(until)
    finally:
        queue.stop()
        thread.join()


def test_what_may_pass_is_tried_again_with_growing_pauses() -> None:
    pauses: list[float] = []
    client = FakeClient(
        WriteResponse(503),
        OSError("no route"),
        WriteResponse(500),
        WriteResponse(429, "slow down", "7"),
        WriteResponse(502),
        WriteResponse(204),
    )
    queue = RemoteWriteQueue("http://x", client, batch_samples=1, pause=pauses.append)
    queue.take([one(queue, 1.0), one(queue, 2.0)])
    run_with(client, queue, lambda: queue.counts.sent == 2)
    assert [value for _, _, value in client.rows()] == [1.0, 2.0]
    assert queue.counts.retried == len(pauses) == 5
    assert pauses[3] == 7
    assert 0.03 < pauses[0] < pauses[1] < pauses[2] < pauses[4]
    assert sum(queue.counts.dropped.values()) == 0


def test_a_refusal_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient(WriteResponse(400, "out of order"), WriteResponse(400, "out of order"))
    queue = RemoteWriteQueue("http://x", client, batch_samples=2)
    queue.take([one(queue, float(n)) for n in range(5)])
    run_with(client, queue, lambda: queue.counts.dropped["refused"] == 4)
    assert [value for _, _, value in client.rows()] == [4.0]
    assert [record.levelname for record in caplog.records] == ["ERROR"], "once per episode"
    assert "out of order" in caplog.text


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    client = FakeClient()
    queue = RemoteWriteQueue("http://x", client, batch_samples=10, queue_bytes=1000)
    for start in range(0, 1000, 10):
        queue.take([one(queue, float(start + n)) for n in range(10)])
        assert queue.queued_bytes <= 1000
    send_all(queue)
    rows = [value for _, _, value in client.rows()]
    assert rows == [float(n) for n in range(1000 - len(rows), 1000)]
    assert queue.counts.dropped["queue_full"] == 1000 - len(rows) > 0
    counted = {family.name: family.samples for family in queue.families()}
    assert counted["gpuscope_remote_write_sent_samples_total"][0][1] == len(rows)
    assert counted["gpuscope_remote_write_dropped_samples_total"][0][1] == 1000 - len(rows)


def test_stopping_does_not_hang_on_a_dead_receiver() -> None:
    client = FakeClient(*[OSError("refused")] * 100)
    queue = RemoteWriteQueue("http://x", client, batch_samples=1)
    queue.take([one(queue, float(n)) for n in range(5)])
    send_all(queue)
    assert client.attempts == 1
    assert queue.counts.dropped["stopped"] == 5


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("", 0), ("12", 12), ("99999", 300), ("soon", 0), ("-3", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)],
)
def test_retry_after(said: str, seconds: float) -> None:
    assert retry_after(said) == seconds


def test_retry_after_takes_a_date() -> None:
    assert 50 < retry_after(formatdate(time.time() + 60, usegmt=True)) <= 60
    assert retry_after(formatdate(time.time() + 9999, usegmt=True)) == 300


def test_families_become_samples_as_if_scraped() -> None:
    client = FakeClient()
    queue = RemoteWriteQueue("http://x", client)
    sender = FamilySender(queue, {"job": "gpuscope", "instance": "n1"})
    gpu, gone = LabelSet((("gpu", "0"), ("empty", ""))), LabelSet((("pid", "7"),))
    sender.send([MetricFamily("m", "gauge", "", [Sample(gpu, 1), Sample(gone, 2)])], AT)
    sender.send([MetricFamily("m", "gauge", "", [Sample(gpu, 3)])], AT + 1000)
    send_all(queue)
    rows = {
        (dict(labels)["__name__"], dict(labels).get("pid", ""), at - AT): value
        for labels, at, value in client.rows()
    }
    assert rows["up", "", 0] == rows["up", "", 1000] == 1
    assert (rows["m", "", 0], rows["m", "7", 0], rows["m", "", 1000]) == (1, 2, 3)
    assert struct.pack("<d", rows["m", "7", 1000]) == struct.pack("<Q", STALE_NAN_BITS)
    assert dict(client.rows()[1][0]) == {"__name__": "m", "gpu": "0", "instance": "n1", "job": "gpuscope"}


def receiver(
    seen: list[tuple[str, dict[str, str], bytes]], close: bool = False
) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        seen.append((request.path, {name.lower(): value for name, value in request.headers.items()}, body))
        if close:
            request.close_connection = True
        request.send_response(204)
        request.end_headers()

    return answer


def test_the_client_over_a_socket() -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []
    with serving({"/w": receiver(seen), "/full": status(503, Retry_After="9")}) as address:
        url, http = split_credentials(f"http://me:se%20cret@{address}/w?x=1", HttpConfig(), "--remote-write")
        client = PostClient(url, http, 10)
        for _ in range(2):
            assert client.post(b"body", HEADERS) == WriteResponse(204)
        client.close()
        full = PostClient(f"http://{address}/full", HttpConfig(), 10)
        assert full.post(b"x", ()) == WriteResponse(503, "", "9")
        full.close()
    path, headers, body = seen[1]
    assert (path, body) == ("/w?x=1", b"body")
    assert headers["authorization"] == "Basic bWU6c2UgY3JldA=="
    assert headers["content-encoding"] == "snappy"


def test_a_kept_connection_that_the_peer_closed_is_opened_again() -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []
    with serving({"/w": receiver(seen, close=True)}) as address:
        client = PostClient(f"http://{address}/w", HttpConfig(), 10)
        for _ in range(3):
            assert client.post(b"body", HEADERS).status == 204
        client.close()
    assert len(seen) == 3


def test_nobody_there_is_an_oserror() -> None:
    client = PostClient("http://127.0.0.1:1/w", HttpConfig(), 5)
    with pytest.raises(OSError):
        client.post(b"", ())


@pytest.mark.parametrize("wrong", ["", "nonsense", "ftp://x/", "http://", "http://h:port/", "http://[::1"])
def test_a_wrong_url_is_told(wrong: str) -> None:
    with pytest.raises(UsageError, match="--remote-write"):
        split_credentials(wrong, HttpConfig(), "--remote-write")
