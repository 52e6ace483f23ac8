"""One Intel GPU: reads its files tier by tier, and gives its readings as a `Device`.

A tier is replaced as a whole, so that a failed read leaves no old number. A card that the kernel has put to
sleep is not read: reading would wake it. A card that answers nothing keeps its identity and loses its numbers
at once; after the source's deadline it counts as lost. Utilisation is that of its clients: the source adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Device, Maybe
from gpuscope.model.source import Tier
from gpuscope.vendors.drm.card_files import CallGuard, CardFiles, Fields
from gpuscope.vendors.drm.card_identity import make_uuid, read_pci_identity
from gpuscope.vendors.drm.pci_gpus import INTEL
from gpuscope.vendors.drm.pcie_link import find_card_port, read_link
from gpuscope.vendors.intel.intel_gpu.graphics_parts import (
    GRAPHICS,
    MEGAHERTZ,
    GraphicsPart,
    find_parts,
    read_highest_clocks,
    read_part_clocks,
    read_throttle_reasons,
    tiles,
)
from gpuscope.vendors.intel.intel_gpu.intel_cards import XE, IntelCard, find_model
from gpuscope.vendors.intel.intel_gpu.intel_sensors import (
    NO_CARD_SENSORS,
    EnergyMeter,
    find_card_sensors,
    read_card_fans,
    read_card_temperatures,
    read_power_limits,
)
from gpuscope.vendors.intel.intel_values import NO_INTEL_VALUES, IntelValues

VENDOR: Final = "intel"
ASLEEP: Final = ("suspended", "suspending")


class IntelGpu:
    def __init__(
        self, card: IntelCard, rootfs: str, clock: Callable[[], float], guard: CallGuard | None = None
    ) -> None:
        """`clock` is monotonic."""
        self.card = card
        self._clock = clock
        name = f"intel-gpu: {card.name}"
        self._files = CardFiles(card.folder, name, guard)
        """The driver's. Those of the PCI bus exist without it."""
        self._pci = CardFiles(card.folder, name, guard)
        port, slot = find_card_port(Path(card.folder), INTEL)
        self._port = CardFiles(str(port), name, guard)
        self._slot = None if slot is None else CardFiles(str(slot), name, guard)
        self._sensors = NO_CARD_SENSORS
        self._parts: tuple[GraphicsPart, ...] = ()
        self._meter = EnergyMeter()
        self._values: dict[Tier, Fields] = {}
        self._identity: dict[str, Any] = {}
        self.is_integrated = card.is_integrated
        self.uuid = make_uuid(card.address, rootfs)
        self.answered_at = clock()
        self.failures: dict[str, str] = {}
        self.processes_known = True
        self.is_asleep = False
        self.engine_ratio: Maybe[Mapping[str, float]] = ABSENT
        """Share of time, by engine; ABSENT if not all clients of the card are known."""

    def has_not_read(self, tier: Tier) -> bool:
        return tier not in self._values and not self.is_asleep

    def read(self, tiers: frozenset[Tier]) -> None:
        for files in (self._files, self._pci, self._port):
            files.begin()
        if not self._identity or Tier.SLOW in tiers:
            self._pci.retry_refused()
            self._identity = self._read_identity() or self._identity
        status = self._pci.text("power/runtime_status")
        self.is_asleep = status is not ABSENT and status in ASLEEP
        if self.is_asleep:
            self._values.clear()
            self.failures = {}
            self.answered_at = self._clock()
            return
        if Tier.SLOW in tiers or not self._values:
            self._probe()
        readers = {Tier.FAST: self._read_fast, Tier.MEDIUM: self._read_medium, Tier.SLOW: self._read_slow}
        for tier in sorted(tiers, key=lambda tier: tier.value):
            self._values.pop(tier, None)
            self._values[tier] = readers[tier]()
        self.failures = self._judge()

    def _judge(self) -> dict[str, str]:
        """What failed, and why. Some kernels and virtual functions have no files of the driver at all: a card
        is silent only if files fail and none answers."""
        if self._files.answered or (self._pci.answered and not self._files.failures):
            self.answered_at = self._clock()
            return {**self._port.failures, **self._files.failures}
        self._values.clear()
        reasons = sorted(set(self._files.failures.values())) or ["no files"]
        return {"none of its files": ", ".join(reasons)}

    def _probe(self) -> None:
        """What there is changes with the driver."""
        self._files.retry_refused()
        self._sensors = find_card_sensors(self._files, self.card.driver)
        self._parts = find_parts(self._files, self.card)

    def _read_identity(self) -> dict[str, Any]:
        device = self._pci.number("device", 16)
        if device is ABSENT:
            return {}
        model, architecture = find_model(device)
        return {
            "vendor": VENDOR,
            "model": model,
            "architecture": architecture,
            "pci_bus_id": self.card.address,
            **read_pci_identity(self._pci),
        }

    def _read_fast(self) -> Fields:
        fields = self._meter.read(self._files, self._sensors, self._clock())
        fields["temperature_celsius"] = read_card_temperatures(self._files, self._sensors)
        fields["clock_hertz"] = read_part_clocks(self._files, self._parts)
        fields["throttle_reasons"] = read_throttle_reasons(self._files, self._parts)
        return fields

    def _read_medium(self) -> Fields:
        fans = read_card_fans(self._files, self._sensors)
        return {"fan_rpm": fans, **read_link(self._port, self._slot)}

    def _read_slow(self) -> Fields:
        fields: Fields = {"power_limit_watts": read_power_limits(self._files, self._sensors)}
        fields["clock_max_hertz"] = read_highest_clocks(self._files, self._parts)
        memory = self._files.scaled("tile0/memory/freq0/max_freq", MEGAHERTZ)
        if memory is not ABSENT:
            fields["clock_max_hertz"]["memory"] = memory
        total = self._memory_total()
        if total is not ABSENT and not self.is_integrated:
            fields["memory_total_bytes"] = total
        return fields

    def _memory_total(self) -> Maybe[float]:
        """Kernels of kernel.org do not say it; Intel's own packages of the drivers do."""
        if self.card.driver != XE:
            return self._files.scaled(f"drm/card{self.card.number}/lmem_total_bytes", 1.0)
        sizes = [self._files.scaled(f"{tile}/physical_vram_size_bytes", 1.0) for tile in tiles(self._files)]
        known = [size for size in sizes if size is not ABSENT]
        return sum(known) if known and len(known) == len(sizes) else ABSENT

    # Readings

    def to_device(self, stale_seconds: float) -> Device:
        if self._clock() - self.answered_at > stale_seconds:
            return self.to_identity()
        values: Fields = {}
        for fields in self._values.values():
            values.update(fields)
        if self.engine_ratio is not ABSENT:
            values["engine_active_ratio"] = self.engine_ratio
            values["utilization_ratio"] = self.engine_ratio[GRAPHICS]
        return Device(
            uuid=self.uuid,
            index=self.card.index,
            **self._identity,
            **values,
            processes_known=self.processes_known,
            vendor_values=IntelValues(device_ids=self._device_ids()),
        )

    def to_identity(self) -> Device:
        return Device(
            uuid=self.uuid,
            index=self.card.index,
            lost=True,
            **self._identity,
            vendor_values=NO_INTEL_VALUES,
        )

    def _device_ids(self) -> dict[str, Any]:
        """Of Intel's device plugin, and of its driver of dynamic resource allocation."""
        ids = {} if self.card.number is ABSENT else {f"card{self.card.number}": self.uuid}
        device = self._identity.get("pci_ids", {}).get("device")
        if device is not None:
            address = self.card.address.replace(":", "-").replace(".", "-")
            ids[f"{address}-0x{int(device) >> 16:04x}"] = self.uuid
        return ids
