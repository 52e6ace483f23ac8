"""Finds the processes that have a card open, by their open files, and reads what each client uses.

A walk lists the open files of every process; a process whose list is as before is not looked at again, except
now and then, because a file may be closed and its number used for a card. Between walks only the known clients
are read. Files of other users' processes need the right to trace them; what may not be read is counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpuscope.model.readings import ABSENT, Maybe, Pid
from gpuscope.vendors.drm.fdinfo import DrmClient, parse_fdinfo

DEVICES: Final = "/dev/dri/"
MAX_FILES_OF_A_PROCESS: Final = 1024
"""Programs open their card early: later files are connections of servers."""
MAX_CLIENTS: Final = 4096
MAX_READ_BETWEEN_WALKS: Final = 256
WALKS_TO_SEE_ALL: Final = 32
"""Each walk looks again at this part of the processes, whatever their list of files is."""
MAX_FDINFO_BYTES: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUse:
    """What a client uses now, and the process that counts for it."""

    pid: Pid
    device: str
    """The file of the card: `renderD128`."""
    client: DrmClient
    engine_ratio: Maybe[Mapping[str, float]]
    """Share of time since the last reading, by engine; ABSENT in the first one. The kernel leaves out engines
    that the client has never used."""


class _CardFile(NamedTuple):
    fd: str
    device: str


@dataclass(slots=True)
class _KnownClient:
    pid: int
    file: _CardFile
    client: DrmClient
    read_at: float
    engine_ns: dict[str, int]
    """The highest so far: the kernel's values may go back."""
    engine_cycles: dict[str, tuple[int, int]]
    """The highest so far, and the clock of the card at the last reading."""
    ratio: Maybe[Mapping[str, float]] = ABSENT


class DrmClients:
    """`drivers` are those of the cards that are of interest."""

    def __init__(self, procfs: str, drivers: Collection[str], clock: Callable[[], float]) -> None:
        self._root = procfs.rstrip("/")
        self._drivers = drivers
        self._clock = clock
        self._files: dict[int, int] = {}
        """PID -> hash of the names of its open files, when it was last looked at."""
        self._open: dict[int, tuple[_CardFile, ...]] = {}
        """PID -> its files of cards."""
        self._known: dict[tuple[str, int], _KnownClient] = {}
        self._walks = 0
        self.asleep: Collection[str] = ()
        """Files of cards that sleep, such as `renderD128`: reading about a client would wake the card. What was
        known of it stays, and it does no work."""
        self.unreadable = 0
        """Processes of the last walk whose files may not be listed."""

    def walk(self) -> list[ClientUse]:
        """Looks for clients in all processes."""
        self._walks += 1
        self.unreadable = 0
        listed: dict[int, int] = {}
        opened: dict[int, tuple[_CardFile, ...]] = {}
        for pid in self._pids():
            try:
                names = sorted(os.listdir(f"{self._root}/{pid}/fd"))  # noqa: PTH208 - thousands of them
            except PermissionError:
                self.unreadable += 1
                continue
            except OSError:
                continue  # it has ended
            seen = hash(tuple(names))
            if self._files.get(pid) == seen and (pid + self._walks) % WALKS_TO_SEE_ALL:
                cards = self._open.get(pid, ())
            else:
                cards = self._card_files(pid, names)
            listed[pid] = seen
            if cards:
                opened[pid] = cards
        self._files, self._open = listed, opened
        return self._read((pid, file) for pid, files in opened.items() for file in files)

    def read_known(self) -> list[ClientUse]:
        """Reads the clients of the last walk again."""
        known = list(self._known.values())
        if len(known) > MAX_READ_BETWEEN_WALKS:
            return [_to_use(client) for client in known]
        return self._read((client.pid, client.file) for client in known)

    def _pids(self) -> list[int]:
        try:
            names = os.listdir(self._root)  # noqa: PTH208
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdigit() and name.isascii())

    def _card_files(self, pid: int, names: list[str]) -> tuple[_CardFile, ...]:
        folder = f"{self._root}/{pid}/fd"
        cards = []
        for name in names[:MAX_FILES_OF_A_PROCESS]:
            try:
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - thousands of them
            except OSError:
                continue  # it was closed, or the process has ended
            if target.startswith(DEVICES):
                cards.append(_CardFile(name, target.removeprefix(DEVICES)))
        return tuple(cards)

    def _read(self, files: Iterable[tuple[int, _CardFile]]) -> list[ClientUse]:
        known: dict[tuple[str, int], _KnownClient] = {}
        before = {(client.pid, client.file): client for client in self._known.values()} if self.asleep else {}
        for pid, file in files:
            if file.device in self.asleep:
                if (pid, file) in before:
                    idle = replace(before[pid, file], ratio={})
                    known.setdefault(idle.client.key, idle)
                continue
            client = self._read_client(pid, file.fd)
            if client is None or client.driver not in self._drivers:
                continue
            if client.key in known and not self._counted_before(client.key, pid):
                continue
            if len(known) < MAX_CLIENTS or client.key in known:
                known[client.key] = self._advance(self._known.get(client.key), pid, file, client)
        self._known = known
        return [_to_use(client) for client in known.values()]

    def _counted_before(self, key: tuple[str, int], pid: int) -> bool:
        """Whether this process counted for the client before: a fork with a lower PID does not take it over."""
        before = self._known.get(key)
        return before is not None and before.pid == pid

    def _read_client(self, pid: int, fd: str) -> DrmClient | None:
        try:
            handle = os.open(f"{self._root}/{pid}/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = os.read(handle, MAX_FDINFO_BYTES)
        except OSError:
            return None
        finally:
            os.close(handle)
        return parse_fdinfo(text.decode("utf-8", "replace"))

    def _advance(
        self, before: _KnownClient | None, pid: int, file: _CardFile, client: DrmClient
    ) -> _KnownClient:
        now = self._clock()
        if before is None:
            return _KnownClient(pid, file, client, now, dict(client.engine_ns), dict(client.engine_cycles))
        elapsed = now - before.read_at
        if elapsed <= 0:
            return replace(before, pid=pid, file=file, client=client)
        highest, ratio = dict(before.engine_ns), {}
        for engine, nanoseconds in client.engine_ns.items():
            last = highest.get(engine, 0)
            highest[engine] = max(nanoseconds, last)
            busy = (highest[engine] - last) / 1e9 / max(1, client.engine_capacity.get(engine, 1))
            ratio[engine] = min(1.0, busy / elapsed)
        cycles, of_cycles = _advance_cycles(before.engine_cycles, client)
        known = ABSENT if of_cycles is ABSENT else {**ratio, **of_cycles}
        return _KnownClient(pid, file, client, now, highest, cycles, known)


def _advance_cycles(
    before: Mapping[str, tuple[int, int]], client: DrmClient
) -> tuple[dict[str, tuple[int, int]], Maybe[dict[str, float]]]:
    """The cycles to keep, and the share of the card's clock by engine; ABSENT if the clock has begun again."""
    kept, ratio, began_again = dict(before), {}, False
    for engine, (own, clock) in client.engine_cycles.items():
        last, last_clock = before.get(engine, (own, clock))
        kept[engine] = max(own, last), clock
        began_again = began_again or clock < last_clock
        gained, passed = kept[engine][0] - last, max(1, clock - last_clock)
        ratio[engine] = min(1.0, gained / passed / max(1, client.engine_capacity.get(engine, 1)))
    return kept, ABSENT if began_again else ratio


def _to_use(known: _KnownClient) -> ClientUse:
    return ClientUse(
        pid=Pid(known.pid), device=known.file.device, client=known.client, engine_ratio=known.ratio
    )


def sum_ratio(uses: Iterable[ClientUse], engines: Collection[str]) -> Maybe[float]:
    """Share of time on these engines, of all these clients together; ABSENT if none was read twice."""
    measured = [use.engine_ratio for use in uses if use.engine_ratio is not ABSENT]
    if not measured:
        return ABSENT
    return min(1.0, sum(ratios.get(engine, 0.0) for ratios in measured for engine in engines))
