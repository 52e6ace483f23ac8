"""XIDs counted per GPU and code, each occurrence once, whichever way it came.

The same XID reaches us through the kernel log and through the driver's events. Two reports of one code on one
GPU through different channels within `SAME_EVENT_SECONDS` are one occurrence; two through the same channel are
two. The kernel log knows a GPU by its PCI address: what comes before a device with that address was seen is
kept, and joined to the GPU's account then. With a state file a restarted agent neither forgets nor counts
again; without one it reads the kernel log since boot again and comes to the same totals.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.collect.xid_state import LogPosition, SavedAccount, State, StateFile
from gpuscope.readings import ABSENT, Device, Uuid, XidEvent, XidTotal

log = logging.getLogger("gpuscope.xids")

SAME_EVENT_SECONDS = 10.0
# A forged or broken log must not fill the memory. No GPU has shown more than a handful of codes.
MAX_CODES_PER_GPU = 256
MAX_GPUS = 256
MAX_UNMATCHED = 20_000
MAX_UNMATCHED_SAVED = 2_000
MAX_NEW = 1_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?")


def normal_pci_bus_id(text: str) -> str:
    """NVML's spelling, `00000000:8D:00.0`, of any spelling; other text as it is."""
    found = _PCI_ADDRESS.fullmatch(text)
    if found is None:
        return text
    domain, bus, device = (int(part, 16) for part in found.groups())
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


@dataclass(slots=True)
class _Account:
    """One code on one GPU. `unmatched` has, by channel, the times that no other channel has confirmed yet.

    Where there is only one channel they wait for ever, up to `MAX_UNMATCHED`: hence plain doubles, a quarter
    of what a deque of floats takes.
    """

    count: int = 0
    last_at: float = float("-inf")
    unmatched: dict[str, array[float]] = field(default_factory=dict)

    def report(self, channel: str, at: float) -> bool:
        """Whether this is a new occurrence. Each channel reports in the order of time."""
        self.last_at = max(self.last_at, at)
        for other, times in self.unmatched.items():
            if other == channel:
                continue
            oldest = at - SAME_EVENT_SECONDS
            passed = next((n for n, time in enumerate(times) if time >= oldest), len(times))
            del times[:passed]  # this channel is past them: nobody will confirm them any more
            if times and times[0] <= at + SAME_EVENT_SECONDS:
                del times[0]
                return False
        self.count += 1
        self.unmatched.setdefault(channel, array("d")).append(at)
        return True

    def absorb(self, other: _Account) -> None:
        """Joins what was counted of the same GPU and code under another name."""
        self.count += other.count
        self.last_at = max(self.last_at, other.last_at)
        reports = [(at, channel) for channel, times in other.unmatched.items() for at in times]
        self.count -= len(reports)
        for at, channel in sorted(reports):
            self.report(channel, at)
        for channel, times in self.unmatched.items():
            self.unmatched[channel] = array("d", sorted(times))


class XidLedger:
    def __init__(self, state: Path | None = None, boot_id: str | None = None) -> None:
        self._accounts: dict[str, dict[int, _Account]] = {}  # by UUID, or by PCI address while that is all
        self._uuid_at: dict[str, Uuid] = {}  # by PCI address
        self._shown: set[str] = set()  # GPUs of this boot: a card taken out long ago is kept but not shown
        self._position = LogPosition()
        self._unmatched = 0  # at most; exact after each sweep
        self._refused = 0
        self._totals: tuple[XidTotal, ...] | None = None
        self._new: deque[XidEvent] = deque(maxlen=MAX_NEW)
        self._boot_id = _read_boot_id() if boot_id is None else boot_id
        self._file = None if state is None else StateFile(state)
        if self._file is not None and self._boot_id:
            self._restore(self._file.load())

    def add(self, events: Iterable[XidEvent]) -> None:
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

    def take_new(self) -> list[XidEvent]:
        """The occurrences counted since the last call, each once."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def totals(self, devices: Sequence[Device]) -> tuple[XidTotal, ...]:
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

    def _to_totals(self) -> Iterator[XidTotal]:
        for gpu in sorted(self._shown & self._accounts.keys()):
            for xid, account in sorted(self._accounts[gpu].items()):
                yield XidTotal(gpu_uuid=Uuid(gpu), xid=xid, count=account.count, last_at=account.last_at)

    def _count(self, event: XidEvent) -> None:
        gpu = self._gpu_of(event)
        account = None if gpu is None else self._account(gpu, event.xid)
        if account is None:
            self._refused += 1
            if self._refused == 1:
                log.warning(
                    "an XID is not counted, for want of a GPU or because of too many GPUs or codes: %s", event
                )
            return
        if account.report(event.channel, event.at):
            self._new.append(event)
            self._unmatched += 1
            if self._unmatched > MAX_UNMATCHED:
                self._sweep()

    def _gpu_of(self, event: XidEvent) -> str | None:
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

    def _account(self, gpu: str, xid: int) -> _Account | None:
        codes = self._accounts.get(gpu)
        if codes is None:
            if len(self._accounts) >= MAX_GPUS:
                return None
            codes = self._accounts[gpu] = {}
        account = codes.get(xid)
        if account is None:
            if len(codes) >= MAX_CODES_PER_GPU:
                return None
            account = codes[xid] = _Account()
        return account

    def _learn(self, address: str, uuid: Uuid) -> None:
        if self._uuid_at.get(address) == uuid:
            return
        if len(self._uuid_at) >= MAX_GPUS:
            self._uuid_at.clear()  # what is still there is learned again with the next devices
        self._uuid_at[address] = uuid
        waiting = self._accounts.pop(address, None)
        if waiting is None:
            return
        for xid, account in waiting.items():
            known = self._account(uuid, xid)
            if known is not None:
                known.absorb(account)
        self._shown.add(uuid)
        self._totals = None
        self._save()

    def _sweep(self) -> None:
        """Forgets the oldest reports that wait for another channel; they stay counted."""
        waiting = [times for times in self._waiting_times() if times]
        share = max(1, MAX_UNMATCHED // 2 // len(waiting))
        for times in waiting:
            del times[: max(0, len(times) - share)]
        self._unmatched = sum(map(len, waiting))

    def _waiting_times(self) -> Iterator[array[float]]:
        for codes in self._accounts.values():
            for account in codes.values():
                yield from account.unmatched.values()

    def _save(self) -> None:
        if self._file is None or not self._boot_id:
            return
        waiting = sorted(at for times in self._waiting_times() for at in times)
        oldest = waiting[-MAX_UNMATCHED_SAVED] if len(waiting) > MAX_UNMATCHED_SAVED else float("-inf")
        accounts = tuple(
            SavedAccount(
                gpu=gpu,
                xid=xid,
                count=account.count,
                last_at=account.last_at,
                unmatched={
                    channel: tuple(at for at in times if at >= oldest)
                    for channel, times in account.unmatched.items()
                },
            )
            for gpu, codes in self._accounts.items()
            for xid, account in codes.items()
        )
        self._file.save(
            State(
                boot_id=self._boot_id,
                position=self._position,
                uuid_at=dict(self._uuid_at),
                shown=tuple(sorted(self._shown & self._accounts.keys())),
                accounts=accounts,
            )
        )

    def _restore(self, state: State | None) -> None:
        if state is None:
            return
        same_boot = state.boot_id == self._boot_id
        if same_boot:
            self._position = state.position
            self._shown = set(state.shown)
            self._uuid_at = {address: Uuid(uuid) for address, uuid in state.uuid_at.items()}
        for saved in state.accounts:
            is_address = _PCI_ADDRESS.fullmatch(saved.gpu) is not None
            if is_address and not same_boot:
                continue  # another card may sit there by now
            account = self._account(saved.gpu, saved.xid)
            if account is None:
                continue
            account.count, account.last_at = saved.count, saved.last_at
            if same_boot:
                account.unmatched = {channel: array("d", times) for channel, times in saved.unmatched.items()}
                self._unmatched += sum(map(len, saved.unmatched.values()))


def _read_boot_id() -> str:
    try:
        return BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
