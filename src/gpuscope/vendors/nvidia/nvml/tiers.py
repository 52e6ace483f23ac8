"""Which numbers are read more often than their usual tier, because they are requested at an interval.

Input: DCGM field ids and their interval (`--as dcgm-exporter -c`); output: the tier of each call and field.
Other numbers keep their usual tier, because the slow tier has most of the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.dcgm_fields import FIELD_READINGS, NVLINK_RATE_IDS, REQUESTED_FIELD_READINGS

# The clocks of the source: wall clock for the driver's sample timestamps, monotonic clock for intervals.


@dataclass(frozen=True, slots=True)
class Clocks:
    now: Callable[[], float] = time.time  # seconds since the epoch; may jump
    monotonic: Callable[[], float] = time.monotonic

    def now_us(self) -> int:
        return int(self.now() * 1e6)


SYSTEM = Clocks()


Key = str | tuple[str, ...] | None
Number = tuple[str, Key]
"""An attribute of `Device` and a key of its mapping; without a key, the whole mapping."""

COSTLY_CALLS: Final = {"pcie_bytes_per_second": "nvmlDeviceGetPcieThroughput takes 20 ms a call"}
P2P_STATUS: Final = "p2p_nvlink_status"

# Fields that depend on several readings: totals over links, and dcgm-exporter's own counters.
_WHOLE: Final = {
    **dict.fromkeys((409, 419, 429, 439), ("link_errors",)),
    9003: (
        *("pcie_replays", "link_up", "link_errors", "ecc_errors", "row_remap_failed", "violation_seconds"),
        *("retired_pages", "retired_pages_pending", "remapped_rows"),
    ),
    9004: (P2P_STATUS,),
    64: (P2P_STATUS,),
}


@dataclass(frozen=True, slots=True)
class TierPlan:
    requested: frozenset[Number] = frozenset()
    tier: Tier = Tier.SLOW

    def tier_of(self, usual: Tier, numbers: Iterable[Number]) -> Tier:
        """The tier of a call that returns these numbers and belongs to the tier `usual`."""
        if usual.value <= self.tier.value or not any(self._requests(number) for number in numbers):
            return usual
        return self.tier

    def _requests(self, number: Number) -> bool:
        return number in self.requested or (number[0], None) in self.requested

    @property
    def profiles_links(self) -> bool:
        return any(attribute == "profiled_nvlink_link_bytes_per_second" for attribute, _ in self.requested)

    def costs(self) -> list[str]:
        """Warnings about slow calls that are made more often than usual."""
        if self.tier.value >= Tier.MEDIUM.value:
            return []
        attributes = {attribute for attribute, _ in self.requested}
        return [text for attribute, text in COSTLY_CALLS.items() if attribute in attributes]


NO_REQUESTS: Final = TierPlan()


def plan_tiers(field_ids: Iterable[int], interval: float | None) -> TierPlan:
    """Puts the readings of these fields into the slowest tier that is as fast as `interval`."""
    requested = frozenset(number for field_id in field_ids for number in _numbers(field_id))
    if interval is None:
        return TierPlan(requested)
    fitting = [tier for tier in Tier if tier.value <= interval]
    return TierPlan(requested, max(fitting, key=lambda tier: tier.value, default=Tier.FAST))


_READINGS: Final = {row.id: row.reading for row in (*FIELD_READINGS, *REQUESTED_FIELD_READINGS)}


def _numbers(field_id: int) -> Iterator[Number]:
    if field_id in NVLINK_RATE_IDS:
        link, direction = NVLINK_RATE_IDS[field_id]
        for way in (direction,) if direction else ("tx", "rx"):
            yield ("link_bytes_each", (link, way)) if link else ("nvlink_aggregate_bytes", way)
    yield from ((attribute, None) for attribute in _WHOLE.get(field_id, ()))
    if field_id in _READINGS:
        attribute, *keys = _READINGS[field_id].split(".")
        yield attribute, (None if not keys else keys[0] if len(keys) == 1 else tuple(keys))
