"""Where the GPU processes of this machine have a RAS service: network namespace, address and port.

Input: PIDs; output: a `RasEndpoint` for each service that really listens. The port comes from NCCL_RAS_ADDR in
the environment of a process, which is text of its user: it is used only if a program of the same user listens
on it in the network namespace of the process, and the address is the listener's own. So an agent contacts no
other machine and no other user's program, whatever a user writes there.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpuscope.agent.owners.proc import Proc, ProcessGone
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Maybe

DEFAULT_PORT: Final = 28028
MAX_PROCESSES: Final = 256
MAX_ENDPOINTS: Final = 16
MAX_FILE_BYTES: Final = 1 << 18
LISTENING: Final = b"0A"
RANK_VARIABLES: Final = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")

_PORT = re.compile(rb":(\d{1,5})\Z")
_LOCAL = re.compile(rb"\|-- ([\d.]{7,15})\n\s+/32 host LOCAL")


class LocalProcess(NamedTuple):
    pid: int
    start_ticks: int
    namespace_pid: int
    """What the process takes for its PID."""
    uid: int
    network: int
    """The inode of its network namespace."""
    port: int
    world_rank: Maybe[int]
    """Its rank as its launcher set it."""


class Listener(NamedTuple):
    address: str
    port: int
    uid: int


@dataclass(frozen=True, slots=True)
class RasEndpoint:
    network: int
    port: int
    uid: int
    address: str
    processes: tuple[LocalProcess, ...]  # that may belong to it, by PID

    @property
    def key(self) -> tuple[int, int, int]:
        return self.network, self.port, self.uid


class EndpointFinder:
    """Looks at each process once: its environment does not change."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._known: dict[tuple[int, int], LocalProcess | None] = {}

    def find(self, pids: Iterable[int]) -> list[RasEndpoint]:
        known: dict[tuple[int, int], LocalProcess | None] = {}
        for pid in sorted(set(pids))[:MAX_PROCESSES]:
            try:
                key = pid, self._proc.stat(pid).start_ticks
                known[key] = self._known[key] if key in self._known else self._look_up(*key)
            except (ProcessGone, OSError, SourceError, ValueError):
                continue
        self._known = known
        by_service: dict[tuple[int, int, int], list[LocalProcess]] = {}
        for process in known.values():
            if process is not None:
                by_service.setdefault((process.network, process.port, process.uid), []).append(process)
        listeners = {
            network: list(self._listeners(processes[0].pid))
            for (network, _, _), processes in by_service.items()
        }
        endpoints = []
        for (network, port, uid), processes in sorted(by_service.items()):
            for listener in listeners[network]:
                if (listener.port, listener.uid) == (port, uid):
                    endpoints.append(RasEndpoint(network, port, uid, listener.address, tuple(processes)))
                    break
        return endpoints[:MAX_ENDPOINTS]

    def local_addresses(self, endpoint: RasEndpoint) -> set[str]:
        """The addresses of its network namespace, by which RAS names this machine's processes."""
        pid = endpoint.processes[0].pid
        return {
            *parse_ipv4_addresses(self._file(pid, "fib_trie")),
            *parse_ipv6_addresses(self._file(pid, "if_inet6")),
        }

    def _look_up(self, pid: int, start_ticks: int) -> LocalProcess | None:
        """None: its RAS service is switched off."""
        status = self._proc.read(pid, "status")
        port, world_rank = self._environment(pid)
        if port is None:
            return None
        return LocalProcess(
            pid=pid,
            start_ticks=start_ticks,
            namespace_pid=parse_namespace_pid(status),
            uid=parse_effective_uid(status),
            network=Path(self._proc.root, str(pid), "ns/net").stat().st_ino,
            port=port,
            world_rank=world_rank,
        )

    def _environment(self, pid: int) -> tuple[int | None, Maybe[int]]:
        try:
            environment = self._proc.environ(pid)
        except OSError:  # only root may read that of other users
            return DEFAULT_PORT, ABSENT
        return parse_environment(environment)

    def _listeners(self, pid: int) -> Iterator[Listener]:
        for name in ("tcp", "tcp6"):
            yield from parse_listeners(self._file(pid, name))

    def _file(self, pid: int, name: str) -> bytes:
        try:
            with Path(self._proc.root, str(pid), "net", name).open("rb") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return b""


def parse_environment(environment: bytes) -> tuple[int | None, Maybe[int]]:
    """The port, None if RAS is switched off, and the rank."""
    values: dict[bytes, bytes] = {}
    for entry in environment.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in (b"NCCL_RAS_ADDR", b"NCCL_RAS_ENABLE", *RANK_VARIABLES):
            values.setdefault(name, value)
    ranks = [values[name] for name in RANK_VARIABLES if re.fullmatch(rb"\d{1,7}", values.get(name, b""))]
    rank: Maybe[int] = int(ranks[0]) if ranks else ABSENT
    if values.get(b"NCCL_RAS_ENABLE") == b"0":
        return None, rank
    port = _PORT.search(values.get(b"NCCL_RAS_ADDR", b""))
    number = int(port[1]) if port else DEFAULT_PORT
    return (number if 0 < number < 65536 else DEFAULT_PORT), rank


def parse_namespace_pid(status: bytes) -> int:
    """The last number of `NSpid:	4711	7`; without that line, which Linux has since 4.1, the PID."""
    for name in (b"\nNSpid:", b"\nPid:"):
        _, found, rest = status.partition(name)
        if found:
            return int(rest.partition(b"\n")[0].split()[-1])
    raise ValueError("no PID in /proc/PID/status")


def parse_effective_uid(status: bytes) -> int:
    _, _, rest = status.partition(b"\nUid:")
    return int(rest.partition(b"\n")[0].split()[1])


def parse_listeners(table: bytes) -> Iterator[Listener]:
    """From /proc/PID/net/tcp or tcp6. The kernel lists listening sockets first."""
    for line in table.split(b"\n")[1:]:
        cells = line.split(None, 8)
        if len(cells) < 9 or cells[3] != LISTENING:
            return
        address, _, port = cells[1].partition(b":")
        try:
            yield Listener(_address(address), int(port, 16), int(cells[7]))
        except ValueError:
            return


def _address(digits: bytes) -> str:
    """32-bit words in the machine's byte order; `any` is answered on the loopback address."""
    raw = bytes.fromhex(digits.decode("ascii"))
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(swapped)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address)


def parse_ipv4_addresses(table: bytes) -> set[str]:
    """From /proc/PID/net/fib_trie."""
    return {match.decode("ascii") for match in _LOCAL.findall(table)}


def parse_ipv6_addresses(table: bytes) -> set[str]:
    """From /proc/PID/net/if_inet6."""
    addresses = set()
    for line in table.split(b"\n"):
        digits = line.partition(b" ")[0]
        if len(digits) == 32:
            addresses.add(str(ipaddress.ip_address(bytes.fromhex(digits.decode("ascii")))))
    return addresses
