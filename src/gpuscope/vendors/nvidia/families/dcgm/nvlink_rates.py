"""NVLink throughput as DCGM computes it: the increase of the driver's byte counters between two readings.

Input: snapshots; output: rates by (UUID, link, direction); an empty link or direction means all. The unit is
DCGM's, which divides KiB by 1000 and calls the result MB/s. Until a counter was read twice, its rate is absent
or that of the profiling units, except that a counter of 0 has the rate 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from gpuscope.model.readings import Device, Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import NVLINK_RATE_IDS
from gpuscope.vendors.nvidia.nvidia_values import own

RateKey = tuple[str, str, str]
Rates = Mapping[RateKey, float]

DCGM_UNIT_BYTES = 1024 * 1000.0
IDLE_SECONDS = 30.0  # three times the medium tier: a counter that is unchanged for so long means no traffic


def wants_links(field_ids: Iterable[int]) -> bool:
    """Whether one of these fields is the throughput of a single link."""
    return any(NVLINK_RATE_IDS[field_id][0] for field_id in field_ids if field_id in NVLINK_RATE_IDS)


class NvlinkRates:
    def __init__(self) -> None:
        self._last: dict[RateKey, tuple[float, float, float]] = {}  # bytes, at, rate

    def advance(self, snapshot: Snapshot, *, links: bool = False) -> dict[RateKey, float]:
        """`links`: also compute the rates of single links."""
        rates: dict[RateKey, float] = {}
        for device in snapshot.devices:
            rates |= _profiled(device)
            for (link, direction), count in _counts(device, links):
                key = (str(device.uuid), link, direction)
                rate = self._growth(key, count, snapshot.taken_at)
                if rate is not None:
                    rates[key] = rate / DCGM_UNIT_BYTES
        return rates

    def _growth(self, key: RateKey, now: float, at: float) -> float | None:
        """Keeps the last rate while the counter is unchanged: counters are read less often than snapshots."""
        before = self._last.get(key)
        if before is None or at < before[1] or now < before[0]:
            rate = math.nan if now else 0.0
            self._last[key] = (now, at, rate)
            return None if math.isnan(rate) else rate
        count, since, rate = before
        if now > count:
            rate = (now - count) / (at - since) if at > since else rate
            self._last[key] = (now, at, rate)
        elif at - since > IDLE_SECONDS:
            rate = 0.0
        return None if math.isnan(rate) else rate


def _counts(device: Device, links: bool) -> Iterator[tuple[tuple[str, str], float]]:
    # DCGM uses the driver's total, which may differ from the sum over the links.
    total = own(device).nvlink_aggregate_bytes or device.link_bytes
    for direction, count in total.items():
        yield ("", direction), count
    if total:
        yield ("", ""), sum(total.values())
    if links:
        of_link: dict[str, float] = {}
        for (link, direction), count in device.link_bytes_each.items():
            yield (link, direction), count
            of_link[link] = of_link.get(link, 0.0) + count
        yield from (((link, ""), count) for link, count in of_link.items())


def _profiled(device: Device) -> dict[RateKey, float]:
    """The rates of the profiling units in MB/s: without counters, or until they were read twice."""
    profiled = own(device).profiled_nvlink_bytes_per_second
    rates = {(str(device.uuid), "", direction): rate / 1e6 for direction, rate in profiled.items()}
    return {**rates, (str(device.uuid), "", ""): sum(rates.values())} if rates else {}
