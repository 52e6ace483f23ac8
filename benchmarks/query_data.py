"""A day of samples of a fleet, for the embedded store and, by remote write, for other engines.

25 nodes × 8 GPUs × 10 metrics at 15 s, with different scrape times per node, ending now. The embedded store is
filled directly, tick by tick with background tasks in between, so that it is as after a day of operation.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cramjam
import numpy as np
from numpy.typing import NDArray

from benchmarks.store_bench import METRICS, labels, node_matrix
from gpuscope.base.varint import encode_varint
from gpuscope.history.remote_write.codec import encode_labels
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.model.series import Labels

STEP_MS = 15_000
HOUR_MS = 3_600_000
GPUS = 8
SLICE_TICKS = 120

_SAMPLE = np.dtype(
    [("head", "u1", 3), ("value", "<f8"), ("tag", "u1"), ("time", "u1", 6)]
)  # field 2 of a series, 16 bytes long: value, then time


@dataclass(slots=True)
class SetClock:
    """The store's clock during the fill."""

    time_ms: int

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.now_ms()


@dataclass(frozen=True, slots=True)
class Fleet:
    """`times` is node × tick, `values` node × tick × series."""

    times: NDArray[np.int64]
    values: list[NDArray[np.float64]]
    labels: list[list[Labels]]

    @property
    def samples(self) -> int:
        return sum(one.size for one in self.values)

    @property
    def end_ms(self) -> int:
        return int(self.times.max())


def make_fleet(nodes: int, ticks: int, end_ms: int) -> Fleet:
    rng = np.random.default_rng(4)
    values = [node_matrix(rng, GPUS, ticks) for _ in range(nodes)]
    offsets = -rng.integers(100, STEP_MS - 100, (nodes, 1)) + rng.integers(-3, 4, (nodes, ticks))
    times = end_ms - STEP_MS * np.arange(ticks - 1, -1, -1)[None, :] + offsets
    return Fleet(times, values, [list(labels(node, GPUS)) for node in range(nodes)])


def fill_store(folder: Path, fleet: Fleet) -> None:
    clock = SetClock(int(fleet.times.min()))
    with Store(folder, StoreOptions(max_ahead_ms=HOUR_MS), clock) as store:
        targets = [store.target(f"gpu/node{node}") for node in range(len(fleet.values))]
        series = [store.resolve(*pair) for pair in zip(targets, fleet.labels, strict=True)]
        store.start()
        for tick in range(fleet.times.shape[1]):
            clock.time_ms = int(fleet.times[:, tick].max())
            futures = [
                store.submit(Tick(target, int(fleet.times[n, tick]), series[n], fleet.values[n][tick]))
                for n, target in enumerate(targets)
            ]
            for future in futures:
                future.result()
            if tick % SLICE_TICKS == SLICE_TICKS - 1:
                store.maintain()
        store.compact()


def settle(folder: Path, end_ms: int) -> int:
    """Return the bytes of a store after sealing, merging to 24 h and compacting."""
    with Store(folder, StoreOptions(), SetClock(end_ms + 30 * HOUR_MS)) as store:
        store.start()
        store.seal()
        store.maintain()
        store.compact()
        return store.stats().file_bytes


def write_requests(fleet: Fleet) -> Iterator[bytes]:
    """Yield the whole day as remote-write bodies of half an hour each, oldest first."""
    names = [[encode_labels(one) for one in node] for node in fleet.labels]
    for first in range(0, fleet.times.shape[1], SLICE_TICKS):
        chosen = slice(first, first + SLICE_TICKS)
        parts: list[bytes] = []
        for node, values in enumerate(fleet.values):
            samples = _blank_samples(fleet.times[node, chosen])
            for column, name in enumerate(names[node]):
                samples["value"] = values[chosen, column]
                message = name + samples.tobytes()
                parts += (b"\x0a", encode_varint(len(message)), message)
        yield bytes(cramjam.snappy.compress_raw(b"".join(parts)))


def tick_requests(fleet: Fleet, ticks: int) -> Iterator[bytes]:
    """As Prometheus sends them while it scrapes: a few thousand samples, one per series."""
    names = [encode_labels(one) for node in fleet.labels for one in node]
    for tick in range(ticks):
        parts: list[bytes] = []
        values = np.concatenate([one[tick] for one in fleet.values])
        samples = np.concatenate(
            [
                _blank_samples(np.repeat(fleet.times[n, tick], one.shape[1]))
                for n, one in enumerate(fleet.values)
            ]
        )
        samples["value"] = values
        whole = samples.tobytes()
        for number, name in enumerate(names):
            message = name + whole[number * _SAMPLE.itemsize : (number + 1) * _SAMPLE.itemsize]
            parts += (b"\x0a", encode_varint(len(message)), message)
        yield bytes(cramjam.snappy.compress_raw(b"".join(parts)))


def _blank_samples(times: NDArray[np.int64]) -> NDArray[np.void]:
    samples = np.zeros(len(times), _SAMPLE)
    samples["head"] = (0x12, 16, 0x09)
    samples["tag"] = 0x10
    for byte in range(6):  # every time from 2004 to 2109 takes six bytes
        samples["time"][:, byte] = times >> (7 * byte) & 0x7F | (0x80 if byte < 5 else 0)
    return samples


def send(port: int, bodies: Iterator[bytes]) -> float:
    """Return the seconds until all requests were answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    spent = 0.0
    for body in bodies:
        before = time.perf_counter()
        connection.request("POST", "/api/v1/write", body, headers)
        answer = connection.getresponse()
        message = answer.read()
        spent += time.perf_counter() - before
        if answer.status not in (200, 204):
            raise RuntimeError(f"status {answer.status}: {message[:200]!r}")
    connection.close()
    return spent


def fill_month(folder: Path, end_ms: int, days: int) -> int:
    """Fill one node of 8 GPUs, sealed and merged day by day; return the number of samples."""
    ticks = days * 86_400_000 // STEP_MS
    rng = np.random.default_rng(5)
    day_ticks = 86_400_000 // STEP_MS
    clock = SetClock(end_ms - ticks * STEP_MS)
    count = 0
    with Store(folder, StoreOptions(max_ahead_ms=HOUR_MS), clock) as store:
        target = store.target("gpu/node00")
        series = store.resolve(target, labels(0, GPUS))
        store.start()
        for _ in range(days):
            values = node_matrix(rng, GPUS, day_ticks)
            for first in range(0, day_ticks, SLICE_TICKS):
                futures = []
                for row in range(first, min(first + SLICE_TICKS, day_ticks)):
                    clock.time_ms += STEP_MS
                    futures.append(store.submit(Tick(target, clock.time_ms, series, values[row])))
                for future in futures:
                    future.result()
                store.maintain()
            count += values.size
        store.compact()
    return count


def fill_many(folder: Path, end_ms: int, nodes: int = 100, per_node: int = 600, ticks: int = 120) -> None:
    """Fill 60,000 series with half an hour in the heads, as a server of a large fleet has at its start."""
    rng = np.random.default_rng(6)
    values = rng.integers(0, 100, (8, per_node)).astype(float)
    clock = SetClock(end_ms)
    with Store(folder, StoreOptions(max_ahead_ms=HOUR_MS), clock) as store:
        store.start()
        targets = [store.target(f"gpu/node{node}") for node in range(nodes)]
        series = [
            store.resolve(
                target,
                [
                    (
                        ("__name__", f"metric_{number // GPUS}"),
                        ("gpu", str(number % GPUS)),
                        ("instance", f"node{node}:9400"),
                        ("job", "gpu"),
                    )
                    for number in range(per_node)
                ],
            )
            for node, target in enumerate(targets)
        ]
        for tick in range(ticks):
            clock.time_ms = end_ms - (ticks - tick) * STEP_MS
            futures = [
                store.submit(Tick(target, clock.time_ms + node, series[node], values[tick % 8]))
                for node, target in enumerate(targets)
            ]
            for future in futures:
                future.result()


METRIC_NAMES = tuple(f"gpu_{metric}" for metric in METRICS)
