"""One AMD GPU: who it is, and its readings as a `Device` with its partitions as instances.

A card that answers nothing keeps its identity and loses its numbers at once; after the source's deadline it
counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Device, Instance, Maybe, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amd_values import NO_AMD_VALUES, AmdValues
from gpuscope.vendors.amd.amdgpu.card_list import ListedCard, PartitionDevice
from gpuscope.vendors.amd.amdgpu.card_names import model_name
from gpuscope.vendors.amd.amdgpu.card_reader import CardReader
from gpuscope.vendors.amd.amdgpu.kfd_topology import KfdNode
from gpuscope.vendors.amd.amdgpu.metrics_readings import partition_activity
from gpuscope.vendors.drm.card_files import CallGuard, CardFiles, Fields
from gpuscope.vendors.drm.card_identity import make_uuid, read_pci_identity

VENDOR: Final = "amd"

_OWN: Final = ("gtt_total_bytes", "gtt_used_bytes", "bad_pages")
"""Of the reader's values: those of `AmdValues`."""
_MEMORY: Final = ("vram_total_bytes", "vram_used_bytes")


class AmdGpu:
    def __init__(
        self,
        card: ListedCard,
        rootfs: str,
        clock: Callable[[], float],
        guard: CallGuard | None = None,
        partition_devices: Mapping[int, PartitionDevice] | None = None,
    ) -> None:
        """`partition_devices` are those of all cards, by render minor."""
        self.card = card
        self._rootfs = rootfs
        self._files = CardFiles(card.folder, f"amdgpu: {card.name}", guard)
        self._reader = CardReader(card, clock, guard)
        self._partition_devices = partition_devices or {}
        self._clock = clock
        self.uuid = read_uuid(self._files, card, rootfs)
        self._identity: dict[str, Any] = {}
        self.answered_at = clock()
        self.failures: dict[str, str] = {}
        self.processes_known = True

    def read(self, tiers: frozenset[Tier]) -> None:
        self.failures = self._reader.read(tiers)
        if self._reader.answers or self._reader.is_asleep:
            self.answered_at = self._clock()
        if not self._identity or (Tier.SLOW in tiers and self._reader.answers):
            self._files.retry_refused()
            self._identity = self._read_identity()
        if self.is_split and not self._reader.partition_activity:
            self._read_partitions()

    def has_not_read(self, tier: Tier) -> bool:
        return not self._reader.has_read(tier) and not self._reader.is_asleep

    @property
    def is_processor(self) -> bool:
        """Whether it is part of a processor and uses the machine's memory."""
        return self._reader.is_processor

    @property
    def is_split(self) -> bool:
        return len(self.card.nodes) > 1

    def instance_uuid(self, node: KfdNode) -> Maybe[Uuid]:
        """Of the partition that is KFD's node; ABSENT for a card that is not split."""
        return Uuid(f"{self.uuid}-{self._number(node)}") if self.is_split else ABSENT

    def _number(self, node: KfdNode) -> int:
        return self.card.nodes.index(node)

    def _read_partitions(self) -> None:
        """Newer drivers have a file for each partition instead of a part of the card's file."""
        for number, node in enumerate(self.card.nodes):
            device = self._partition_device(node)
            folder = device.folder if device is not None else self.card.folder if number == 0 else None
            part = None if folder is None else self._reader.partition_metrics(folder)
            activity = ABSENT if part is None else partition_activity(part)
            if activity is not ABSENT:
                self._reader.partition_activity[number] = activity

    def _partition_device(self, node: KfdNode) -> PartitionDevice | None:
        return None if node.render_minor is ABSENT else self._partition_devices.get(node.render_minor)

    def _device_ids(self) -> dict[str, Uuid]:
        """Of AMD's plugins for Kubernetes: names of platform devices, `gpu-CARD-RENDER`. The PCI address of a
        split card is its first partition."""
        own = f"gpu-{self.card.number}-{self.card.render_minor}"
        if not self.is_split:
            return {own: self.uuid}
        ids: dict[str, Uuid] = {}
        for number, node in enumerate(self.card.nodes):
            uuid, device = Uuid(f"{self.uuid}-{number}"), self._partition_device(node)
            if device is not None:
                ids |= {device.name: uuid, f"gpu-{device.card_number}-{node.render_minor}": uuid}
            elif number == 0:
                ids |= {self.card.address: uuid, own: uuid}
        return ids

    def _read_identity(self) -> dict[str, Any]:
        device = self._files.number("device", 16)
        revision = self._files.number("revision", 16)
        model = model_name(
            self._files.text("product_name"),
            0 if device is ABSENT else device,
            0 if revision is ABSENT else revision,
            self._rootfs,
        )
        architectures = [node.architecture for node in self.card.nodes]
        return {
            "vendor": VENDOR,
            "model": model,
            "serial": self._files.text("serial_number"),
            "architecture": architectures[0] if architectures else ABSENT,
            "pci_bus_id": self.card.address,
            "vbios_version": self._files.text("vbios_version"),
            "board_part_number": self._files.text("product_number"),
            **read_pci_identity(self._files),
        }

    # Readings

    def to_device(self, stale_seconds: float) -> Device:
        if self._clock() - self.answered_at > stale_seconds:
            return self.to_identity()
        values = self._reader.values()
        own: Fields = {name: values.pop(name) for name in _OWN if name in values}
        memory = self._memory({name: values.pop(name, ABSENT) for name in _MEMORY}, own)
        units = sum(node.compute_units for node in self.card.nodes)
        return Device(
            uuid=self.uuid,
            index=self.card.index,
            **self._identity,
            **values,
            **memory,
            processes_known=self.processes_known,
            is_split=self.is_split,
            instances=tuple(self._instances()) if self.is_split else (),
            vendor_values=AmdValues(
                **own,
                compute_units=float(units) if units else ABSENT,
                device_ids=self._device_ids(),
                partition_modes=self._modes(),
            ),
        )

    def _modes(self) -> dict[tuple[str, ...], float]:
        modes = self._reader.modes
        return {(modes.get("compute", ""), modes.get("memory", "")): 1.0} if modes else {}

    def to_identity(self) -> Device:
        return Device(
            uuid=self.uuid,
            index=self.card.index,
            lost=True,
            **self._identity,
            vendor_values=NO_AMD_VALUES,
        )

    def _memory(self, vram: Mapping[str, Maybe[float]], own: Fields) -> Fields:
        """A processor's GPU uses the machine's memory: a small part is set aside, the rest is GTT."""
        total, used = vram["vram_total_bytes"], vram["vram_used_bytes"]
        if self._reader.is_processor:
            total = _plus(total, own.get("gtt_total_bytes", ABSENT))
            used = _plus(used, own.get("gtt_used_bytes", ABSENT))
        free = ABSENT if total is ABSENT or used is ABSENT else max(0.0, total - used)
        return {"memory_total_bytes": total, "memory_used_bytes": used, "memory_free_bytes": free}

    def _instances(self) -> list[Instance]:
        modes, count = self._reader.modes, len(self.card.nodes)
        profile = " ".join(
            part for part in (modes.get("compute", ""), f"1/{count}", modes.get("memory", "")) if part
        )
        found = []
        for number, node in enumerate(self.card.nodes):
            activity = self._reader.partition_activity.get(number)
            found.append(
                Instance(
                    uuid=Uuid(f"{self.uuid}-{number}"),
                    ids=(number,),
                    memory_group=number,
                    profile=profile,
                    memory_total_bytes=node.memory_bytes,
                    engine_active_ratio={} if activity is None else {"graphics": activity},
                    processes_known=self.processes_known,
                    vendor_values=NO_AMD_VALUES,
                )
            )
        return found


def read_uuid(files: CardFiles, card: ListedCard, rootfs: str) -> Uuid:
    """As rocminfo shows it and ROCR_VISIBLE_DEVICES takes it."""
    own = files.number("unique_id", 16)
    known = [own, *(node.unique_id for node in card.nodes)]
    number = next((number for number in known if number is not ABSENT and number), None)
    return Uuid(f"GPU-{number:016x}") if number is not None else make_uuid(card.address, rootfs)


def _plus(first: Maybe[float], second: Maybe[float]) -> Maybe[float]:
    if first is ABSENT or second is ABSENT:
        return second if first is ABSENT else first
    return first + second
