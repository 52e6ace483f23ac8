"""The loss of a GPU, its return, and each error: one log line and one event each.

Input: a cycle's devices and the newly counted errors; output: the latest events for the snapshot. Errors from
before the agent's start are counted elsewhere but make no event: a restarted agent reads the kernel log again.
A GPU that fails repeatedly may write `MAX_LINES` lines, and then one every `SECONDS_PER_LINE`, which says how
many were left out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.collect.error_ledger import normal_pci_bus_id
from gpuscope.model.readings import ABSENT, Device, ErrorEvent, GpuEvent, Maybe, Uuid
from gpuscope.model.vendor import vendor_of

log = logging.getLogger("gpuscope.gpu")

MAX_EVENTS: Final = 100
MAX_GPUS: Final = 256
MAX_LINES: Final = 20
SECONDS_PER_LINE: Final = 30.0


@dataclass(slots=True)
class _LineAllowance:
    """Log lines that one GPU may still write."""

    lines: float = MAX_LINES
    at: float = float("-inf")
    left_out: int = 0

    def take(self, now: float) -> bool:
        self.lines = min(MAX_LINES, self.lines + max(0.0, now - self.at) / SECONDS_PER_LINE)
        self.at = now
        if self.lines < 1:
            self.left_out += 1
            return False
        self.lines -= 1
        return True


class GpuEvents:
    def __init__(self, since: float) -> None:
        self._since = since
        self._seen: dict[Uuid, Device] = {}
        self._at_address: dict[str, Uuid] = {}
        self._lost_at: dict[Uuid, float] = {}
        self._allowances: dict[str, _LineAllowance] = {}
        self._events: deque[GpuEvent] = deque(maxlen=MAX_EVENTS)
        self._latest: tuple[GpuEvent, ...] = ()
        self._added = 0

    def advance(
        self, devices: Sequence[Device], errors: Sequence[ErrorEvent], now: float
    ) -> tuple[GpuEvent, ...]:
        self._learn(devices)
        added = self._added
        for error in errors:  # before the loss, which the error explains
            if error.at >= self._since:
                self._add_error(error, now)
        for device in devices:
            if device.lost != (device.uuid in self._lost_at):
                self._add_change(device, now)
        if self._added != added:
            self._latest = tuple(self._events)
        return self._latest

    def _learn(self, devices: Sequence[Device]) -> None:
        for device in devices:
            if device.uuid not in self._seen and len(self._seen) >= MAX_GPUS:
                continue
            known = self._seen.get(device.uuid)
            self._seen[device.uuid] = device
            if device.pci_bus_id is not ABSENT and (known is None or known.pci_bus_id != device.pci_bus_id):
                self._at_address[normal_pci_bus_id(device.pci_bus_id)] = device.uuid

    def _add_change(self, device: Device, now: float) -> None:
        name = _name(device)
        if device.lost:
            self._lost_at[device.uuid] = now
            self._add("lost", f"{name} is lost: it does not answer any more", device, now)
        else:
            seconds = now - self._lost_at.pop(device.uuid)
            self._add("returned", f"{name} is back, {seconds:.0f} s after it was lost", device, now)

    def _add_error(self, event: ErrorEvent, now: float) -> None:
        address = ABSENT if event.pci_bus_id is ABSENT else normal_pci_bus_id(event.pci_bus_id)
        uuid: Maybe[Uuid] = event.gpu_uuid
        if uuid is ABSENT and address is not ABSENT:
            uuid = self._at_address.get(address, ABSENT)
        device = None if uuid is ABSENT else self._seen.get(uuid)
        if device is not None:
            name = _name(device)
        else:
            name = str(uuid) if uuid is not ABSENT else f"the GPU at PCI address {address}"
        vendor = vendor_of(event.vendor)
        catalogue = None if vendor is None else vendor.errors
        if catalogue is None:
            kind, text = "error", f"error {event.code} on {name}: no meaning given"
        else:
            meaning = catalogue.explain(event.code).meaning
            kind, text = catalogue.key, f"{catalogue.word} {event.code} on {name}: {meaning}"
        self._add(kind, text, device, now, at=event.at, uuid=uuid, address=address, code=event.code)

    def _add(
        self,
        kind: str,
        text: str,
        device: Device | None,
        now: float,
        *,
        at: float | None = None,
        uuid: Maybe[Uuid] = ABSENT,
        address: Maybe[str] = ABSENT,
        code: Maybe[str] = ABSENT,
    ) -> None:
        self._added += 1
        self._events.append(
            GpuEvent(
                kind=kind,
                at=now if at is None else at,
                text=text,
                gpu_uuid=uuid if device is None else device.uuid,
                index=ABSENT if device is None else device.index,
                pci_bus_id=address if device is None else device.pci_bus_id,
                code=code,
            )
        )
        gpu = "" if device is None else device.uuid  # GPUs that were never seen share one allowance
        self._log(logging.INFO if kind == "returned" else logging.WARNING, text, gpu, now)

    def _log(self, level: int, text: str, gpu: str, now: float) -> None:
        allowance = self._allowances.setdefault(gpu, _LineAllowance())
        if allowance.take(now):
            more = f" ({allowance.left_out} lines about it were left out)" if allowance.left_out else ""
            allowance.left_out = 0
            log.log(level, "%s%s", text, more)


def _name(device: Device) -> str:
    where = "" if device.pci_bus_id is ABSENT else f", PCI address {device.pci_bus_id}"
    return f"GPU {device.index} ({device.uuid}{where})"
