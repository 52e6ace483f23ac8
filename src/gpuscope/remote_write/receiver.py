"""Receives remote write 1.0 and 2.0 and appends the samples to the store.

Samples are grouped by the target they were scraped from (labels `job` and `instance`), because the store keeps
samples with the same timestamps together; without these labels they are grouped by the sender's address. The
store accepts or refuses each sample; refused samples are counted by reason and reported to the sender.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import cramjam
import numpy as np
from numpy.typing import NDArray

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.metrics.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.remote_write.codec import NO_ROOM, Decoded, Labels, MessageLimits, WriteDecoder
from gpuscope.remote_write.codec_v2 import WriteDecoderV2
from gpuscope.store import Store, Tick, UnknownSeriesError
from gpuscope.varint import WireError

INVALID = "invalid_labels"
OVERSIZED = "label_limits"
"""More labels than `write_max_labels`, or longer than `write_max_label_{name,value}_bytes`."""
HISTOGRAM = "native_histogram"
NO_SAMPLES = "no_samples"
"""A series of a 2.0 request without a sample or histogram, which the protocol forbids."""
NEW_SERIES = "new_series"
"""A new series that `max_series` or `max_new_series` refuses."""

_TARGET_PREFIX = "remote write "

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


@dataclass(slots=True)
class _Slots:
    """The target and the store's id of each series, by the number that the decoder uses for it."""

    targets: list[int] = field(default_factory=list)
    series: list[int] = field(default_factory=list)


def is_pushed(target: str) -> bool:
    """Whether the samples of the store's target with this name came by remote write."""
    return target.startswith(_TARGET_PREFIX)


class Receiver:
    """Thread-safe: requests are decoded one at a time, and wait for the disk at the same time."""

    def __init__(self, store: Store, server_limits: Limits | None = None) -> None:
        self._store = store
        self.server_limits = server_limits or Limits()
        self._lock = threading.Lock()
        self._sender = ""
        self._slots = _Slots()
        self._target_ids: dict[str, int] = {}
        self._epoch = store.epoch
        within = _message_limits(self.server_limits)
        self._decoder = WriteDecoder(self._slot, within)
        self._decoder_v2 = WriteDecoderV2(self._slot, within)
        self.requests = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()

    def take(self, packed: bytes, sender: str, *, version: int = 1) -> Received:
        """Raises WireError if `packed` is not a valid request, StoreError if the store cannot append now."""
        body = unpack(packed, self.server_limits.write_max_decoded_bytes)
        decoder = self._decoder if version == 1 else self._decoder_v2
        for attempt in (1, 2):
            with self._lock:
                decoded, ticks = self._ticks(decoder, body, sender)
            try:
                return self._store_all(decoded, ticks)
            except UnknownSeriesError:  # series were deleted after decoding: decode again to get new ids
                if attempt == 2:
                    raise
                with self._lock:
                    self._forget()
        raise AssertionError("unreachable")

    def _store_all(self, decoded: Decoded, ticks: list[Tick]) -> Received:
        futures = [self._store.submit(tick) for tick in ticks]
        accepted = repeated = 0
        refused: Counter[str] = Counter()
        for outcome in [future.result() for future in futures]:
            accepted += outcome.accepted
            repeated += outcome.repeated
            refused.update(outcome.refused)
        refused.update({INVALID: decoded.invalid, OVERSIZED: decoded.oversized})
        refused.update({HISTOGRAM: decoded.histograms, NEW_SERIES: decoded.no_room})
        refused.update({NO_SAMPLES: decoded.no_samples})
        refused = +refused
        with self._lock:
            self.requests += 1
            self.accepted += accepted
            self.refused.update(refused)
        why = self._store.series_refused() if decoded.no_room else ""
        return Received(accepted, repeated, dict(refused), why, self._store.out_of_order_ms > 0)

    def _ticks(
        self, decoder: WriteDecoder | WriteDecoderV2, body: bytes, sender: str
    ) -> tuple[Decoded, list[Tick]]:
        if self._epoch != self._store.epoch or len(self._slots.series) > 2_000_000:
            self._forget()
        self._sender = sender
        decoded = decoder.decode(body)
        targets, series = self._lookup(decoded.series)
        times = _int64s(decoded.times)
        values = np.fromiter(decoded.values, np.float64, len(decoded.values))
        return decoded, list(_by_target(targets, series, times, values))

    def _lookup(self, slots: list[int]) -> tuple[_Ints, _Ints]:
        targets, series = self._slots.targets, self._slots.series
        count = len(slots)
        return (
            np.fromiter((targets[slot] for slot in slots), np.int64, count),
            np.fromiter((series[slot] for slot in slots), np.int64, count),
        )

    def _forget(self) -> None:
        self._epoch = self._store.epoch
        self._slots = _Slots()
        self._target_ids.clear()
        self._decoder.forget()
        self._decoder_v2.forget()

    def _slot(self, labels: Labels) -> int | None:
        table = dict(labels)
        if len(table) != len(labels) or not table.get("__name__") or "" in table:
            return None
        target = self._target(table)
        kept = tuple(pair for pair in labels if pair[1] != "")
        # New series count against the limit of the sender's address: a client chooses its labels freely.
        series = int(self._store.resolve(target, [kept], origin=self._sender)[0])
        if not series:
            return NO_ROOM
        self._slots.targets.append(target)
        self._slots.series.append(series)
        return len(self._slots.series) - 1

    def _target(self, labels: dict[str, str]) -> int:
        job, instance = labels.get("job", ""), labels.get("instance", "")
        name = _TARGET_PREFIX + (f"job={job} instance={instance}" if instance else f"{self._sender} {job}")
        found = self._target_ids.get(name)
        if found is None:
            found = self._target_ids[name] = self._store.target(name)
        return found

    def families(self) -> Iterator[MetricFamily]:
        for name, value, text in (
            ("requests", self.requests, "Remote-write requests received."),
            ("samples", self.accepted, "Samples stored from remote write."),
        ):
            full = f"gpuscope_received_{name}_total"
            yield MetricFamily(full, "counter", text, [Sample(NO_LABELS, value)])
        with self._lock:
            refused = sorted(self.refused.items())
        samples = [Sample(LabelSet((("reason", why),)), count) for why, count in refused]
        yield MetricFamily(
            "gpuscope_received_refused_samples_total", "counter", "Remote-write samples refused.", samples
        )


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
