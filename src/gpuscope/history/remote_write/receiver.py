"""Receives remote write 1.0 and 2.0 and appends the samples to the store.

Samples are grouped by the target they were scraped from (labels `job` and `instance`), because the store keeps
samples with the same timestamps together; without these labels they are grouped by the sender's address. The
store accepts or refuses each sample; refused samples are counted by reason and reported to the sender. A target
that this server reads itself has no other writer, and a sender whose token is bound to a node writes only that
node's samples.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import cramjam
import numpy as np
from numpy.typing import NDArray

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.varint import WireError
from gpuscope.history.remote_write.codec import (
    NO_ROOM,
    OTHER_NODE,
    SCRAPED_HERE,
    Decoded,
    Labels,
    MessageLimits,
    WriteDecoder,
)
from gpuscope.history.remote_write.codec_v2 import WriteDecoderV2
from gpuscope.history.store import Store, Tick, UnknownSeriesError
from gpuscope.history.store.tick import belongs_to_node, node_target_name, remote_target_name
from gpuscope.model.exposition.sample import MetricFamily, metric_by, single_metric

INVALID = "invalid_labels"
OVERSIZED = "label_limits"
"""More labels than `write_max_labels`, or longer than `write_max_label_{name,value}_bytes`."""
HISTOGRAM = "native_histogram"
NO_SAMPLES = "no_samples"
"""A series of a 2.0 request without a sample or histogram, which the protocol forbids."""
_REASONS: Final = {NO_ROOM: "new_series", OTHER_NODE: "other_node", SCRAPED_HERE: "scraped_here"}
"""Why the samples of a series are refused: a limit on new series, a token bound to another node, or a target
that this server reads itself."""
MAX_SENDERS: Final = 1_000
"""Nodes whose series are remembered; as many as there can be tokens."""

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Received:
    accepted: int = 0
    repeated: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    series_refused: str = ""
    """Why new series were refused."""
    takes_out_of_order: bool = False
    """Whether `out_of_order_time_window` is set; what Prometheus says about old samples depends on it."""


class _Series:
    """The series of the senders with one permission: the node that their token is bound to, or "" for any. The
    decoders know a series by the bytes of its labels, so those of another permission have their own."""

    def __init__(self, store: Store, node: str, within: MessageLimits) -> None:
        self._store = store
        self._node = node
        self.sender = ""
        """Of the request that is decoded."""
        self._targets: list[int] = []
        self._series: list[int] = []
        self._target_ids: dict[str, int] = {}
        self._decoder = WriteDecoder(self._slot, within)
        self._decoder_v2 = WriteDecoderV2(self._slot, within)
        self._valid_for = self._versions()

    def decode(self, body: bytes, sender: str, version: int) -> Decoded:
        if self._valid_for != self._versions() or len(self._series) > 2_000_000:
            self.forget()
        self.sender = sender
        return (self._decoder if version == 1 else self._decoder_v2).decode(body)

    def ticks(self, decoded: Decoded) -> list[Tick]:
        count = len(decoded.series)
        targets = np.fromiter((self._targets[slot] for slot in decoded.series), np.int64, count)
        series = np.fromiter((self._series[slot] for slot in decoded.series), np.int64, count)
        times = _int64s(decoded.times)
        values = np.fromiter(decoded.values, np.float64, len(decoded.values))
        return list(_by_target(targets, series, times, values))

    def forget(self) -> None:
        self._valid_for = self._versions()
        self._targets, self._series = [], []
        self._target_ids.clear()
        self._decoder.forget()
        self._decoder_v2.forget()

    def _versions(self) -> tuple[int, int]:
        return self._store.epoch, self._store.own_instances.version

    def _slot(self, labels: Labels) -> int | None:
        table = dict(labels)
        if len(table) != len(labels) or not table.get("__name__") or "" in table:
            return None
        job, instance = table.get("job", ""), table.get("instance", "")
        if self._node and not belongs_to_node(instance, self._node):
            return OTHER_NODE
        if (job, instance) in self._store.own_instances:
            return SCRAPED_HERE
        target = self._target(job, instance)
        kept = tuple(pair for pair in labels if pair[1] != "")
        # New series count against the limit of the sender's address: a client chooses its labels freely.
        series = int(self._store.resolve(target, [kept], origin=self.sender)[0])
        if not series:
            return NO_ROOM
        self._targets.append(target)
        self._series.append(series)
        return len(self._series) - 1

    def _target(self, job: str, instance: str) -> int:
        name = (
            node_target_name(self._node, job, instance)
            if self._node
            else remote_target_name(self.sender, job, instance)
        )
        target = self._target_ids.get(name)
        if target is None:
            target = self._target_ids[name] = self._store.target(name)
        return target


class Receiver:
    """Thread-safe: requests are decoded one at a time, and wait for the disk at the same time."""

    def __init__(self, store: Store, server_limits: Limits | None = None) -> None:
        self._store = store
        self.server_limits = server_limits or Limits()
        self._lock = threading.Lock()
        self._series_by_node: dict[str, _Series] = {}
        self.requests = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()

    def take(self, packed: bytes, sender: str, *, version: int = 1, node: str = "") -> Received:
        """`node` is the one that the sender's token is bound to. Raises WireError if `packed` is not a valid
        request, StoreError if the store cannot append now."""
        body = unpack(packed, self.server_limits.write_max_decoded_bytes)
        for attempt in (1, 2):
            with self._lock:
                known = self._series_of(node)
                decoded = known.decode(body, sender, version)
                ticks = known.ticks(decoded)
            try:
                return self._store_all(decoded, ticks)
            except UnknownSeriesError:  # series were deleted after decoding: decode again to get new ids
                if attempt == 2:
                    raise
                with self._lock:
                    known.forget()
        raise AssertionError("unreachable")

    def _series_of(self, node: str) -> _Series:
        known = self._series_by_node.get(node)
        if known is None:
            if len(self._series_by_node) > MAX_SENDERS:
                self._series_by_node.clear()
            known = _Series(self._store, node, _message_limits(self.server_limits))
            self._series_by_node[node] = known
        return known

    def _store_all(self, decoded: Decoded, ticks: list[Tick]) -> Received:
        futures = [self._store.submit(tick) for tick in ticks]
        accepted = repeated = 0
        refused: Counter[str] = Counter()
        for outcome in [future.result() for future in futures]:
            accepted += outcome.accepted
            repeated += outcome.repeated
            refused.update(outcome.refused)
        refused.update({INVALID: decoded.invalid, OVERSIZED: decoded.oversized})
        refused.update({_REASONS[code]: count for code, count in decoded.refused.items()})
        refused.update({HISTOGRAM: decoded.histograms, NO_SAMPLES: decoded.no_samples})
        refused = +refused
        with self._lock:
            self.requests += 1
            self.accepted += accepted
            self.refused.update(refused)
        why = self._store.series_refused() if decoded.refused[NO_ROOM] else ""
        return Received(accepted, repeated, dict(refused), why, self._store.out_of_order_ms > 0)

    def families(self) -> Iterator[MetricFamily]:
        for name, value, text in (
            ("requests", self.requests, "Remote-write requests received."),
            ("samples", self.accepted, "Samples stored from remote write."),
        ):
            full = f"gpuscope_received_{name}_total"
            yield single_metric(full, "counter", text, value)
        with self._lock:
            refused = dict(self.refused)
        full = "gpuscope_received_refused_samples_total"
        yield metric_by("reason", full, "counter", "Remote-write samples refused.", refused)


def _message_limits(limits: Limits) -> MessageLimits:
    return MessageLimits(
        limits.write_max_samples,
        limits.write_max_symbols,
        4 * limits.write_max_decoded_bytes,
        limits.write_max_labels,
        limits.write_max_label_name_bytes,
        limits.write_max_label_value_bytes,
    )


def unpack(packed: bytes, limit: int) -> bytes:
    """Decompresses a snappy block; the size is in its header and is checked before memory is allocated."""
    try:
        size = cramjam.snappy.decompress_raw_len(packed)
        if size > limit:
            LIMITS_REACHED.count("write_max_decoded_bytes")
            raise WireError(
                f"the request has {size} bytes uncompressed; the limit is {limit} (write_max_decoded_bytes)"
            )
        return bytes(cramjam.snappy.decompress_raw(packed))
    except cramjam.DecompressionError as error:
        raise WireError(f"not a snappy block: {error}") from None


def _int64s(numbers: list[int]) -> _Ints:
    return np.fromiter(numbers, np.int64, len(numbers))


def _by_target(targets: _Ints, series: _Ints, times: _Ints, values: NDArray[np.float64]) -> Iterator[Tick]:
    if not len(targets):
        return
    order = np.argsort(targets, kind="stable")
    targets, series, times, values = targets[order], series[order], times[order], values[order]
    cuts = np.flatnonzero(np.diff(targets)) + 1
    starts = [0, *cuts.tolist()]
    for start, end in zip(starts, [*cuts.tolist(), len(targets)], strict=True):
        own = times[start:end]
        yield Tick(int(targets[start]), int(own.max()), series[start:end], values[start:end], own)
