"""Errors of GPUs counted per GPU and code, each occurrence once although two sources may report it.

The kernel log and the driver's events report the same error. Two reports of one code on one GPU from
different reporters within `SAME_EVENT_SECONDS` are one occurrence; two of the same reporter are two. The
kernel log names a GPU by its PCI address: reports are kept under the address until a device with that address
is seen. With a state file a restarted agent neither forgets nor counts twice; without one it reads the kernel
log since boot again and gets the same totals.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.agent.collect.error_state import ErrorState, ErrorStateFile, LogPosition, SavedErrorCount
from gpuscope.model.readings import ABSENT, Device, ErrorEvent, ErrorTotal, Maybe, Uuid

log = logging.getLogger("gpuscope.xids")

SAME_EVENT_SECONDS = 10.0
# A forged or broken log must not fill the memory. Real GPUs show fewer than ten codes.
MAX_CODES_PER_GPU = 256
MAX_GPUS = 256
MAX_UNMATCHED = 20_000
MAX_UNMATCHED_SAVED = 2_000
MAX_NEW = 1_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?")


def normal_pci_bus_id(text: str) -> str:
    """A PCI address in NVML's format, `00000000:8D:00.0`; other text unchanged."""
    found = _PCI_ADDRESS.fullmatch(text)
    if found is None:
        return text
    domain, bus, device = (int(part, 16) for part in found.groups())
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


ErrorKey = tuple[str, str]
"""Vendor and code."""


@dataclass(slots=True)
class _ErrorCount:
    """One code on one GPU. `unmatched` has, by reporter, the times that no other reporter has confirmed yet.

    With only one reporter they are never confirmed, and up to `MAX_UNMATCHED` are kept: hence an array of
    doubles, which takes a quarter of the memory of a deque.
    """

    count: int = 0
    last_at: float = float("-inf")
    last_monotonic: Maybe[float] = ABSENT
    unmatched: dict[str, array[float]] = field(default_factory=dict)

    def report(self, reporter: str, at: float) -> bool:
        """Whether this is a new occurrence. Each reporter reports in order of time."""
        self.last_at = max(self.last_at, at)
        for other, times in self.unmatched.items():
            if other == reporter:
                continue
            oldest = at - SAME_EVENT_SECONDS
            passed = next((n for n, time in enumerate(times) if time >= oldest), len(times))
            del times[:passed]  # too old: this reporter will not confirm them any more
            if times and times[0] <= at + SAME_EVENT_SECONDS:
                del times[0]
                return False
        self.count += 1
        self.unmatched.setdefault(reporter, array("d")).append(at)
        return True

    def occurred(self, monotonic: Maybe[float]) -> None:
        if monotonic is not ABSENT:
            last = self.last_monotonic
            self.last_monotonic = monotonic if last is ABSENT else max(last, monotonic)

    def absorb(self, other: _ErrorCount) -> None:
        """Adds what was counted for the same GPU and code under its PCI address."""
        self.count += other.count
        self.last_at = max(self.last_at, other.last_at)
        self.occurred(other.last_monotonic)
        reports = [(at, reporter) for reporter, times in other.unmatched.items() for at in times]
        self.count -= len(reports)
        for at, reporter in sorted(reports):
            self.report(reporter, at)
        for reporter, times in self.unmatched.items():
            self.unmatched[reporter] = array("d", sorted(times))


class ErrorLedger:
    def __init__(self, state: Path | None = None, boot_id: str | None = None) -> None:
        self._counts: dict[str, dict[ErrorKey, _ErrorCount]] = {}
        """By UUID, or by PCI address until the UUID is known."""
        self._uuid_at: dict[str, Uuid] = {}  # by PCI address
        self._shown: set[str] = set()  # GPUs of this boot: one that was removed is kept but not shown
        self._position = LogPosition()
        self._unmatched = 0  # an upper bound; exact after each sweep
        self._refused = 0
        self._totals: tuple[ErrorTotal, ...] | None = None
        self._new: deque[ErrorEvent] = deque(maxlen=MAX_NEW)
        self._file = None if state is None else ErrorStateFile(state)
        self._boot_id = _read_boot_id() if boot_id is None and state is not None else boot_id or ""
        if self._file is not None and self._boot_id:
            self._restore(self._file.load())

    def add(self, events: Iterable[ErrorEvent]) -> None:
        changed = False
        for event in events:
            if self._position.has_passed(event):
                continue
            self._position.advance(event)
            self._count(event)
            changed = True
        if changed:
            self._totals = None
            self._save()

    def kept(self) -> tuple[int, int]:
        """How many GPUs have counts, and how many reports wait to be confirmed."""
        return len(self._counts), sum(map(len, self._waiting_times()))

    def take_new(self) -> list[ErrorEvent]:
        """The occurrences counted since the last call, each once."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def totals(self, devices: Sequence[Device]) -> tuple[ErrorTotal, ...]:
        """Every GPU of this boot, also one no longer among `devices`: it may have fallen off the bus."""
        for device in devices:
            if device.uuid not in self._shown:
                self._shown.add(device.uuid)
                self._totals = None
            if device.pci_bus_id is not ABSENT:
                self._learn(normal_pci_bus_id(device.pci_bus_id), device.uuid)
        if self._totals is None:
            self._totals = tuple(self._to_totals())
        return self._totals

    def _to_totals(self) -> Iterator[ErrorTotal]:
        for gpu in sorted(self._shown & self._counts.keys()):
            for (vendor, code), entry in sorted(self._counts[gpu].items(), key=_by_number):
                yield ErrorTotal(
                    gpu_uuid=Uuid(gpu),
                    vendor=vendor,
                    code=code,
                    count=entry.count,
                    last_at=entry.last_at,
                    last_monotonic=entry.last_monotonic,
                )

    def _count(self, event: ErrorEvent) -> None:
        gpu = self._gpu_of(event)
        entry = None if gpu is None else self._entry(gpu, (event.vendor, event.code))
        if entry is None:
            self._refused += 1
            if self._refused == 1:
                log.warning(
                    "an error is not counted: it names no GPU, or there are too many GPUs or codes: %s", event
                )
            return
        entry.occurred(event.monotonic)
        if entry.report(event.reporter, event.at):
            self._new.append(event)
            self._unmatched += 1
            if self._unmatched > MAX_UNMATCHED:
                self._sweep()

    def _gpu_of(self, event: ErrorEvent) -> str | None:
        address = None if event.pci_bus_id is ABSENT else normal_pci_bus_id(event.pci_bus_id)
        if event.gpu_uuid is not ABSENT:
            if address is not None:
                self._learn(address, event.gpu_uuid)
            self._shown.add(event.gpu_uuid)
            return event.gpu_uuid
        if address is None:
            return None
        uuid = self._uuid_at.get(address)
        if uuid is None:
            return address
        self._shown.add(uuid)
        return uuid

    def _entry(self, gpu: str, key: ErrorKey) -> _ErrorCount | None:
        codes = self._counts.get(gpu)
        if codes is None:
            if len(self._counts) >= MAX_GPUS:
                return None
            codes = self._counts[gpu] = {}
        entry = codes.get(key)
        if entry is None:
            if len(codes) >= MAX_CODES_PER_GPU:
                return None
            entry = codes[key] = _ErrorCount()
        return entry

    def _learn(self, address: str, uuid: Uuid) -> None:
        if self._uuid_at.get(address) == uuid:
            return
        if len(self._uuid_at) >= MAX_GPUS:
            self._uuid_at.clear()  # present GPUs are added again with the next devices
        self._uuid_at[address] = uuid
        waiting = self._counts.pop(address, None)
        if waiting is None:
            return
        for key, entry in waiting.items():
            known = self._entry(uuid, key)
            if known is not None:
                known.absorb(entry)
        self._shown.add(uuid)
        self._totals = None
        self._save()

    def _sweep(self) -> None:
        """Forgets the oldest reports that wait for another reporter; they stay counted."""
        waiting = [times for times in self._waiting_times() if times]
        share = max(1, MAX_UNMATCHED // 2 // len(waiting))
        for times in waiting:
            del times[: max(0, len(times) - share)]
        self._unmatched = sum(map(len, waiting))

    def _waiting_times(self) -> Iterator[array[float]]:
        for codes in self._counts.values():
            for entry in codes.values():
                yield from entry.unmatched.values()

    def _save(self) -> None:
        if self._file is None or not self._boot_id:
            return
        waiting = sorted(at for times in self._waiting_times() for at in times)
        oldest = waiting[-MAX_UNMATCHED_SAVED] if len(waiting) > MAX_UNMATCHED_SAVED else float("-inf")
        counts = tuple(
            SavedErrorCount(
                gpu=gpu,
                vendor=vendor,
                code=code,
                count=entry.count,
                last_at=entry.last_at,
                last_monotonic=entry.last_monotonic,
                unmatched={
                    reporter: tuple(at for at in times if at >= oldest)
                    for reporter, times in entry.unmatched.items()
                },
            )
            for gpu, codes in self._counts.items()
            for (vendor, code), entry in codes.items()
        )
        self._file.save(
            ErrorState(
                boot_id=self._boot_id,
                position=self._position,
                uuid_at=dict(self._uuid_at),
                shown=tuple(sorted(self._shown & self._counts.keys())),
                counts=counts,
            )
        )

    def _restore(self, state: ErrorState | None) -> None:
        if state is None:
            return
        same_boot = state.boot_id == self._boot_id
        if same_boot:
            self._position = state.position
            self._shown = set(state.shown)
            self._uuid_at = {address: Uuid(uuid) for address, uuid in state.uuid_at.items()}
        for saved in state.counts:
            is_address = _PCI_ADDRESS.fullmatch(saved.gpu) is not None
            if is_address and not same_boot:
                continue  # another card may have this address now
            entry = self._entry(saved.gpu, (saved.vendor, saved.code))
            if entry is None:
                continue
            entry.count, entry.last_at = saved.count, saved.last_at
            if same_boot:  # the monotonic clock begins anew with each boot
                entry.last_monotonic = saved.last_monotonic
                entry.unmatched = {reporter: array("d", times) for reporter, times in saved.unmatched.items()}
                self._unmatched += sum(map(len, saved.unmatched.values()))


def _by_number(item: tuple[ErrorKey, _ErrorCount]) -> tuple[str, int, str]:
    """Codes that are numbers in their order."""
    vendor, code = item[0]
    return vendor, len(code), code


def _read_boot_id() -> str:
    try:
        return BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
