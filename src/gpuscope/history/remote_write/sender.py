"""Remote write out: samples in, compressed batches in a bounded queue, sent in order by one thread.

While a receiver is unreachable its queue grows to a limit; beyond it the oldest batch is dropped and counted.
5xx and 429 are retried with growing pauses; other refusals are dropped, since a retry would not change them. No
numpy: an agent runs this too.
"""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import cramjam

from gpuscope.agent.families import Builder
from gpuscope.base.blocking_http import open_url
from gpuscope.base.http_config import HttpConfig, load_http_config, split_credentials
from gpuscope.base.settings import Settings, home_file
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.history.scrape import Sink
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.readings import Snapshot

log = logging.getLogger("gpuscope.push")

HEADERS = (
    ("content-type", "application/x-protobuf"),
    ("content-encoding", "snappy"),
    ("x-prometheus-remote-write-version", "0.1.0"),
)
BATCH_SAMPLES = 2000
BATCH_SECONDS = 5.0
QUEUE_BYTES = 16 << 20
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 10.0
MAX_RETRY_AFTER_SECONDS = 300.0


class WriteClient(Protocol):
    def post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> WriteResponse: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class SendCounts:
    sent: int = 0
    retried: int = 0  # batches
    dropped: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("queue_full", "refused", "stopped"), 0)
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    body: bytes
    samples: int


class RemoteWriteQueue:
    """`take` may be called from any thread; `run` belongs to one."""

    def __init__(
        self,
        name: str,
        client: WriteClient,
        external_labels: Mapping[str, str] | None = None,
        *,
        queue_bytes: int = QUEUE_BYTES,
        batch_samples: int = BATCH_SAMPLES,
        batch_seconds: float = BATCH_SECONDS,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.name = name
        self._client = client
        self._external = dict(external_labels or {})
        self._max_bytes = queue_bytes
        self._batch_samples = batch_samples
        self._batch_seconds = batch_seconds
        self._state = threading.Condition()
        self._filling: list[tuple[bytes, int, float]] = []
        self._filling_since = 0.0
        self._queue: deque[_Batch] = deque()
        self._queued_bytes = 0
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._last_error = ""
        self.counts = SendCounts()

    def encode_labels(self, labels: Iterable[tuple[str, str]]) -> bytes:
        """A series' labels and the external labels; the series' own take precedence."""
        return encode_labels({**self._external, **dict(labels)}.items())

    def take(self, samples: Iterable[tuple[bytes, int, float]]) -> None:
        with self._state:
            if not self._filling:
                self._filling_since = time.monotonic()
            self._filling += samples
            while len(self._filling) >= self._batch_samples:
                self._seal(self._batch_samples)
            self._state.notify()

    def _seal(self, samples: int) -> None:
        """The first `samples` become a batch; the oldest batches are dropped if there is no room."""
        batch, self._filling = self._filling[:samples], self._filling[samples:]
        self._filling_since = time.monotonic()
        body = bytes(cramjam.snappy.compress_raw(encode_samples(batch)))
        self._queue.append(_Batch(body, len(batch)))
        self._queued_bytes += len(body)
        while self._queued_bytes > self._max_bytes and len(self._queue) > 1:
            oldest = self._queue.popleft()
            self._queued_bytes -= len(oldest.body)
            self.counts.dropped["queue_full"] += oldest.samples

    def run(self) -> None:
        """Sends until `stop`; then sends what is left once, without retries."""
        try:
            while not self._stopping.is_set():
                batch = self._next()
                if batch is not None:
                    self._send(batch)
            self._send_rest()
        finally:
            self._client.close()

    def stop(self) -> None:
        self._stopping.set()
        with self._state:
            self._state.notify()

    def _next(self) -> _Batch | None:
        with self._state:
            if not self._queue:
                self._state.wait(min(1.0, self._batch_seconds))
            age = time.monotonic() - self._filling_since
            if not self._queue and self._filling and age >= self._batch_seconds:
                self._seal(len(self._filling))
            return self._take_first() if self._queue else None

    def _take_first(self) -> _Batch:
        batch = self._queue.popleft()
        self._queued_bytes -= len(batch.body)
        return batch

    def _send(self, batch: _Batch) -> bool:
        """False if `stop` was called before the receiver could be reached."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            response = self._post(batch)
            if response.status // 100 == 2:
                self._succeeded(batch)
                return True
            if response.status not in (0, 429) and response.status // 100 != 5:
                self.counts.dropped["refused"] += batch.samples
                self._failed(f"refused with {response.status}: {response.text}", "dropped")
                return True
            self._failed(
                response.text if response.status == 0 else f"{response.status} {response.text}", "kept"
            )
            if self._stopping.is_set():
                self.counts.dropped["stopped"] += batch.samples
                return False
            self.counts.retried += 1
            self._pause(retry_after(response.retry_after) or pause * random.uniform(0.75, 1.25))
            pause = min(MAX_PAUSE_SECONDS, pause * 2)

    def _post(self, batch: _Batch) -> WriteResponse:
        """Status 0: no response."""
        try:
            return self._client.post(batch.body, HEADERS)
        except OSError as error:
            return WriteResponse(0, error.strerror or str(error) or type(error).__name__)

    def _send_rest(self) -> None:
        with self._state:
            if self._filling:
                self._seal(len(self._filling))
            rest = [self._take_first() for _ in range(len(self._queue))]
        reached = True
        for batch in rest:
            if reached:  # after the first failure the others would fail too
                reached = self._send(batch)
            else:
                self.counts.dropped["stopped"] += batch.samples

    def _succeeded(self, batch: _Batch) -> None:
        self.counts.sent += batch.samples
        if self._last_error:
            log.info("remote write to %s works again", self.name)
        self._last_error = ""

    def _failed(self, why: str, fate: str) -> None:
        if not self._last_error:
            log.error("remote write to %s: %s; samples are %s", self.name, why, fate)
        self._last_error = why

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def families(self) -> Iterator[MetricFamily]:
        to = LabelSet((("url", self.name),))
        for name, kind, value, text in (
            ("sent_samples_total", "counter", self.counts.sent, "Samples a receiver has accepted."),
            ("retries_total", "counter", self.counts.retried, "Retries of batches."),
            ("queue_bytes", "gauge", self._queued_bytes, "Size of the compressed batches in the queue."),
        ):
            yield MetricFamily(f"gpuscope_remote_write_{name}", kind, text, [Sample(to, value)])
        dropped = [
            Sample(LabelSet((*to.pairs, ("reason", why))), count) for why, count in self.counts.dropped.items()
        ]
        yield MetricFamily(
            "gpuscope_remote_write_dropped_samples_total",
            "counter",
            "Samples dropped: the queue was full, the receiver refused them, or the process stopped.",
            dropped,
        )


def retry_after(text: str) -> float:
    """Seconds of a Retry-After header, a number or a date; 0 for anything else."""
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    if not text:
        return 0.0
    from email.utils import parsedate_to_datetime  # megabytes, for a header that is rarely a date

    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), MAX_RETRY_AFTER_SECONDS)
    except (TypeError, ValueError, OverflowError):
        return 0.0


# All receivers of remote write: samples are encoded once and put into the queue of each.
#
# `RemoteWriteQueues` is the sink that a server's appenders and an agent's `SnapshotSender` write to. The
# wiring starts a thread for each queue.


class RemoteWriteQueues:
    """At least one."""

    def __init__(self, queues: Sequence[RemoteWriteQueue]) -> None:
        self.queues = queues

    def stop(self) -> None:
        for queue in self.queues:
            queue.stop()

    def encode_labels(self, labels: Iterable[tuple[str, str]]) -> bytes:
        return self.queues[0].encode_labels(labels)

    def take(self, samples: Iterable[tuple[bytes, int, float]]) -> None:
        encoded = list(samples)
        for queue in self.queues:
            queue.take(encoded)

    def families(self) -> Iterator[MetricFamily]:
        """One family with the samples of all receivers, as the text format requires."""
        merged: dict[str, MetricFamily] = {}
        for queue in self.queues:
            for family in queue.families():
                known = merged.get(family.name)
                samples = [*known.samples, *family.samples] if known else family.samples
                merged[family.name] = MetricFamily(family.name, family.type, family.help, samples)
        yield from merged.values()


def build_queues(
    settings: Settings,
    external_labels: Mapping[str, str] | None = None,
    configured: Sequence[tuple[str, HttpConfig]] = (),
    *,
    queue_bytes: int = QUEUE_BYTES,
) -> RemoteWriteQueues | None:
    """Of `--remote-write` and of the receivers in a configuration file; None if there are none."""
    http = HttpConfig()
    if settings.remote_write_http_config:
        path = home_file(settings.remote_write_http_config, "remote_write_http_config")
        http = load_http_config(path, is_blocking=True)
    given = [split_credentials(url, http, f"--remote-write {url}") for url in settings.remote_write]
    queues = [
        RemoteWriteQueue(url, PostClient(url, one), external_labels, queue_bytes=queue_bytes)
        for url, one in (*given, *configured)
    ]
    return RemoteWriteQueues(queues) if queues else None


# The connection of a remote-write sender to its receiver: a POST, and the part of the response that the
# sender needs.
#
# Only the beginning of the response's text is kept. Every failure is an OSError.

MAX_TEXT_BYTES = 512
MAX_BODY_BYTES = 1 << 20
TIMEOUT_SECONDS = 30.0
"""Prometheus' own `remote_timeout`."""


@dataclass(frozen=True, slots=True)
class WriteResponse:
    status: int
    text: str = ""
    retry_after: str = ""


class PostClient:
    """Not for several threads at once."""

    def __init__(self, url: str, http: HttpConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._http, self._target = open_url(
            url, http, timeout_seconds=timeout_seconds, max_body_bytes=MAX_BODY_BYTES
        )

    def post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> WriteResponse:
        response = self._http.request("POST", self._target, headers, body)
        text = " ".join(response.body[:MAX_TEXT_BYTES].decode("utf-8", "replace").split())
        return WriteResponse(response.status, text, response.header("retry-after"))

    def close(self) -> None:
        self._http.close()


# An agent's remote write: takes a collector's snapshots and sends their metric families every
# `remote_write_interval`. No numpy: this runs in the agent.

# Metric families as remote-write samples, as if a server had scraped them.
#
# Adds `job` and `instance`, `up`, and a stale marker for every series that is gone since the last call. No
# numpy: this runs in the agent.

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""Prometheus' stale marker: a NaN with these bits."""


class FamilySender:
    def __init__(self, sink: Sink, labels: Mapping[str, str]) -> None:
        self._sink = sink
        self._labels = dict(labels)
        self._encoded: dict[str, dict[LabelSet, bytes]] = {}
        self._sent_last: set[bytes] = set()
        self._up = sink.encode_labels({**self._labels, "__name__": "up"}.items())

    def send(self, families: Iterable[MetricFamily], at_ms: int) -> None:
        samples: list[tuple[bytes, int, float]] = [(self._up, at_ms, 1.0)]
        for family in families:
            known = self._encoded.setdefault(family.name, {})
            for labels, value in family.samples:
                encoded = known.get(labels)
                if encoded is None:
                    encoded = known[labels] = self._encode(family.name, labels)
                samples.append((encoded, at_ms, float(value)))
            if len(known) > 4 * len(family.samples) + 1000:  # labels of processes that have ended
                known.clear()
        current = {encoded for encoded, _, _ in samples}
        samples += [(encoded, at_ms, STALE) for encoded in self._sent_last - current]
        self._sent_last = current
        self._sink.take(samples)

    def _encode(self, name: str, labels: LabelSet) -> bytes:
        own = {key: value for key, value in labels.pairs if value != ""}
        return self._sink.encode_labels({**own, **self._labels, "__name__": name}.items())


AGENT_QUEUE_BYTES = 4 << 20
"""About twenty minutes of a busy machine; the agent's whole budget is 40 MiB."""
EARLY_SECONDS = 0.5
"""A snapshot may come so much early: the collector's interval has its own phase."""


class SnapshotSender:
    """A collector's listener. It has its own builders: those of the HTTP listeners belong to their threads."""

    def __init__(self, settings: Settings, queues: RemoteWriteQueues, builders: Sequence[Builder]) -> None:
        self._builders = builders
        self._interval = settings.remote_write_interval
        self._next_at = 0.0
        self._queues = queues
        self._sender = FamilySender(queues, {"job": "gpuscope", "instance": settings.node_name()})

    def take(self, snapshot: Snapshot) -> None:
        if snapshot.taken_at < self._next_at - EARLY_SECONDS:
            return
        self._next_at = snapshot.taken_at + self._interval
        families = [family for builder in self._builders for family in builder.to_families(snapshot)]
        self._sender.send(families, int(snapshot.taken_at * 1000))

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        """As a `Builder`: the counters of the queues, for the agent's own exposition."""
        return list(self._queues.families())
