"""Reads one card, tier by tier, into readings of a `Device`.

`gpu_metrics` gives most numbers at once; text files and `hwmon/` give what it lacks, as on old kernels and on
processors with graphics. A tier is replaced as a whole, so that a failed read leaves no old number. A card that
the kernel has put to sleep is not read: reading would wake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu import hwmon, ras_counts
from gpuscope.vendors.amd.amdgpu.card_list import ListedCard
from gpuscope.vendors.amd.amdgpu.gpu_metrics import (
    MAX_BYTES,
    GpuMetrics,
    MetricsError,
    MetricsPart,
    decode_gpu_metrics,
    decode_partition_metrics,
)
from gpuscope.vendors.amd.amdgpu.metrics_readings import (
    MEGAHERTZ,
    fast_readings,
    is_processor,
    link_readings,
    partition_activity,
)
from gpuscope.vendors.amd.amdgpu.throttle_times import ThrottleTimes
from gpuscope.vendors.drm.card_files import CallGuard, CardFiles, Fields
from gpuscope.vendors.drm.pci_gpus import AMD
from gpuscope.vendors.drm.pcie_link import find_card_port, read_link

METRICS: Final = "gpu_metrics"
ASLEEP: Final = ("suspended", "suspending")
INSTINCT: Final = "gfx9"
"""Architectures of Instinct cards begin with it, as do those of old processors, whose metrics are 2.x."""
LEVELS: Final = {"graphics": "pp_dpm_sclk", "memory": "pp_dpm_mclk"}
PERCENTAGES: Final = {
    "utilization_ratio": "gpu_busy_percent",
    "memory_utilization_ratio": "mem_busy_percent",
    "decoder_utilization_ratio": "vcn_busy_percent",
}
MODES: Final = {"compute": "current_compute_partition", "memory": "current_memory_partition"}


class CardReader:
    def __init__(self, card: ListedCard, clock: Callable[[], float], guard: CallGuard | None = None) -> None:
        """`clock` is monotonic."""
        self.card = card
        self._clock = clock
        name = f"amdgpu: {card.name}"
        self.files = CardFiles(card.folder, name, guard)
        """The driver's. Those of the PCI bus exist without it."""
        self._pci = CardFiles(card.folder, name, guard)
        port, slot = find_card_port(Path(card.folder), AMD)
        self._port = CardFiles(str(port), name, guard)
        self._slot = None if slot is None else CardFiles(str(slot), name, guard)
        self._sensors = hwmon.NO_SENSORS
        self._blocks: list[str] = []
        self._throttle = ThrottleTimes()
        self._metrics: GpuMetrics | None = None
        self._values: dict[Tier, Fields] = {}
        self.modes: dict[str, str] = {}
        """Partition modes: `compute` SPX to CPX, `memory` NPS1 to NPS8."""
        self.partition_activity: dict[int, float] = {}
        """0 to 1, by the number of the partition."""
        self.is_asleep = False
        self.answers = True
        """Whether any file of the driver could be read."""

    def read(self, tiers: Iterable[Tier]) -> dict[str, str]:
        """Reads these tiers; returns what failed, and why."""
        due = set(tiers)
        self.files.begin()
        self._pci.begin()
        self._port.begin()
        if self._sleeps():
            self._forget()
            return {}
        if Tier.SLOW in due or not self._values:
            self._probe()
        self._metrics = self._read_metrics()
        readers = {Tier.FAST: self._read_fast, Tier.MEDIUM: self._read_medium, Tier.SLOW: self._read_slow}
        for tier in sorted(due, key=lambda tier: tier.value):
            self._values.pop(tier, None)
            self._values[tier] = readers[tier]()
        self.answers = bool(self.files.answered)
        if not self.answers:
            self._forget()
            reasons = sorted(set(self.files.failures.values())) or ["no files"]
            return {"none of its files": ", ".join(reasons)}
        return {**self._port.failures, **self.files.failures}

    def values(self) -> Fields:
        """Of all tiers, as last read."""
        values: Fields = {}
        for fields in self._values.values():
            values.update(fields)
        return values

    def has_read(self, tier: Tier) -> bool:
        return tier in self._values

    def partition_metrics(self, folder: str) -> MetricsPart | None:
        """Of a partition that has a folder of its own, on newer kernels."""
        data = CardFiles(folder, f"amdgpu: {self.card.name}").raw("xcp/xcp_metrics", MAX_BYTES)
        if data is ABSENT:
            return None
        try:
            return decode_partition_metrics(data)
        except MetricsError as error:
            self.files.fail("xcp/xcp_metrics", str(error))
            return None

    def _sleeps(self) -> bool:
        status = self._pci.text("power/runtime_status")
        self.is_asleep = status is not ABSENT and status in ASLEEP
        return self.is_asleep

    def _forget(self) -> None:
        self._values.clear()
        self.partition_activity = {}

    def _probe(self) -> None:
        """What there is changes with the driver, a partition mode, a reset."""
        self.files.retry_refused()
        self._pci.retry_refused()
        self._sensors = hwmon.find_sensors(self.files)
        self._blocks = ras_counts.find_blocks(self.files)

    def _read_metrics(self) -> GpuMetrics | None:
        data = self.files.raw(METRICS, MAX_BYTES)
        if data is ABSENT:
            return None
        try:
            return decode_gpu_metrics(data)
        except MetricsError as error:
            self.files.fail(METRICS, str(error))
            return None

    @property
    def is_processor(self) -> bool:
        return self._metrics is not None and is_processor(self._metrics)

    def _read_fast(self) -> Fields:
        metrics = self._metrics
        fields: Fields = {}
        if metrics is not None:
            fields = fast_readings(metrics, is_instinct=self._is_instinct())
            throttling = self._throttle.advance(metrics, self._clock())
            fields["throttle_reasons"] = throttling.reasons
            fields["throttled_seconds"] = throttling.seconds
            self.partition_activity = {
                number: activity
                for number, part in enumerate(metrics.partitions)
                if (activity := partition_activity(part)) is not ABSENT
            }
        for name, file in PERCENTAGES.items():
            if name not in fields:
                _put(fields, name, self._percent(file))
        if "power_watts" not in fields:
            _put(fields, "power_watts", hwmon.read_power(self.files, self._sensors))
        if not fields.get("temperature_celsius"):
            fields["temperature_celsius"] = hwmon.read_temperatures(self.files, self._sensors)
        if not fields.get("clock_hertz"):
            fields["clock_hertz"] = hwmon.read_clocks(self.files, self._sensors)
        _put(fields, "vram_used_bytes", self.files.scaled("mem_info_vram_used", 1.0))
        _put(fields, "gtt_used_bytes", self.files.scaled("mem_info_gtt_used", 1.0))
        return fields

    def _is_instinct(self) -> bool:
        architectures = [node.architecture for node in self.card.nodes]
        return any(name is not ABSENT and name.startswith(INSTINCT) for name in architectures)

    def _percent(self, file: str) -> Maybe[float]:
        number = self.files.number(file)
        return ABSENT if number is ABSENT else min(1.0, number / 100)

    def _read_medium(self) -> Fields:
        fields = hwmon.read_fans(self.files, self._sensors)
        fields |= read_link(self._port, self._slot)
        if self._metrics is not None:
            fields |= link_readings(self._metrics)
        if "pcie_replays" not in fields:
            _put(fields, "pcie_replays", self.files.scaled("pcie_replay_count", 1.0))
        return fields

    def _read_slow(self) -> Fields:
        fields = hwmon.read_limits(self.files, self._sensors)
        fields |= ras_counts.read_errors(self.files, self._blocks)
        pages = ras_counts.read_bad_pages(self.files)
        if pages is not ABSENT:
            fields["bad_pages"] = pages
        _put(fields, "vram_total_bytes", self.files.scaled("mem_info_vram_total", 1.0))
        _put(fields, "gtt_total_bytes", self.files.scaled("mem_info_gtt_total", 1.0))
        levels = {clock: self.files.text(file) for clock, file in LEVELS.items()}
        fields["clock_max_hertz"] = {
            clock: hertz
            for clock, text in levels.items()
            if text is not ABSENT and (hertz := highest_level(text)) is not ABSENT
        }
        modes = {name: self.files.text(file) for name, file in MODES.items()}
        self.modes = {name: mode for name, mode in modes.items() if mode is not ABSENT}
        return fields


def highest_level(text: str) -> Maybe[float]:
    """Of a list of clock levels: `1: 2100Mhz *`; the highest, in hertz."""
    highest = 0
    for line in text.splitlines():
        _, _, level = line.partition(":")
        number = level.strip().lower().partition("mhz")[0]
        if number.isascii() and number.isdigit():
            highest = max(highest, int(number))
    return MEGAHERTZ * highest if highest else ABSENT


def _put(fields: Fields, name: str, value: Maybe[float]) -> None:
    if value is not ABSENT:
        fields[name] = value
