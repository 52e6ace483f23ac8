"""A job that communicates with NCCL, as its RAS service describes it, and the service itself.

`RasJob` writes the status documents of NCCL's user guide, as JSON and as text; `FakeRas` serves them in the
documented line protocol. As a program (`python -m tests.fake_nccl PORT FILE`) it serves a file with the options
of a real process: `SO_REUSEPORT`, so that several share the port.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass
class RasRank:
    host: str
    pid: int
    gpu: int = 0
    launched: int = 0  # AllReduce
    silent: bool = False
    dead: bool = False
    leaving: bool = False
    init_state: int = 0
    async_error: int = 0


@dataclass
class RasCommunicator:
    ranks: list[RasRank]
    hash: str = "0x27a079b828ff1a75"


@dataclass
class RasJob:
    communicators: list[RasCommunicator]
    version: str = "2.29.1"

    def to_json(self) -> bytes:
        communicators = [_json_communicator(one) for one in self.communicators]
        document = {
            "nccl_version": self.version,
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2026-11-18 13:06:53",
            "communicators_count": len(communicators),
            "communicators": communicators,
            "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
        }
        return json.dumps(document, indent=2).encode() + b"\n"

    def to_text(self) -> bytes:
        """With the ranks that differ, as `VERBOSE STATUS` names them."""
        places = {(rank.host, rank.pid) for one in self.communicators for rank in one.ranks}
        nodes = len({host for host, _ in places})
        errors: list[str] = []
        warnings: list[str] = []
        table: list[str] = []
        for group, communicator in enumerate(self.communicators):
            kind = _text_details(f"#{group}-0", communicator, errors, warnings)
            size = len(communicator.ranks)
            table.append(
                f"{group:5}  {1:8}  {nodes:8}  {size // nodes:8}  {size:8}  {size:8}   RUNNING  {kind:>6}"
            )
        dead = [rank for rank in self.communicators[0].ranks if rank.dead]
        if dead:
            head = f"  {len(dead)} job process is considered dead (unreachable via the RAS network)"
            lines = [f"  Process {rank.pid} on node {rank.host} managing GPU {rank.gpu}" for rank in dead]
            errors[:0] = ["DEAD", head, *lines, ""]
        lines = [
            f"NCCL version {self.version} compiled with CUDA 13.0",
            "CUDA runtime version 13000, driver version 13000",
            "",
            "Job summary",
            "===========",
            "",
            "  Nodes  Processes         GPUs  Processes     GPUs",
            "(total)   per node  per process    (total)  (total)",
            f"{nodes:7}  {len(places) // nodes:9}  {1:11}  {len(places):9}  {len(places):7}",
            "",
            "Communicators... (0.00s)",
            "=============",
            "",
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group",
            *table,
            "",
            "Errors",
            "======",
            "",
            *errors,
            "Warnings",
            "========",
            "",
            *warnings,
        ]
        return "\n".join(lines).encode() + b"\n"


def _json_communicator(communicator: RasCommunicator) -> dict[str, Any]:
    present, missing = [], []
    for number, rank in enumerate(communicator.ranks):
        row: dict[str, Any] = {
            "rank": number,
            "host": rank.host,
            "pid": rank.pid,
            "cuda_dev": rank.gpu,
            "nvml_dev": rank.gpu,
        }
        if rank.silent or rank.dead:
            row["status"] = {"unresponsive": True, "considered_dead": rank.dead}
            missing.append(row)
            continue
        row["status"] = {
            "init_state": rank.init_state,
            "async_error": rank.async_error,
            "finalize_called": rank.leaving,
            "destroy_flag": False,
            "abort_flag": False,
        }
        row["collective_counts"] = dict.fromkeys(OPERATIONS, 0) | {"AllReduce": rank.launched}
        present.append(row)
    return {
        "hash": communicator.hash,
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(communicator.ranks),
        "ranks_count": len(present),
        "missing_ranks_count": len(missing),
        "ranks": present,
        "missing_ranks": missing,
    }


def _text_details(name: str, communicator: RasCommunicator, errors: list[str], warnings: list[str]) -> str:
    """Adds the paragraphs about the ranks that differ; returns the word of the table."""
    heading, size = f"{name} ({communicator.hash.removeprefix('0x')})", len(communicator.ranks)
    silent = [(number, rank) for number, rank in enumerate(communicator.ranks) if rank.silent or rank.dead]
    kinds = []
    if silent:
        kinds.append("INCOMPLETE")
        errors += [f"{heading} INCOMPLETE", f"  Missing communicator data from {len(silent)} rank"]
        errors += [f"  Rank {number} -- {_managed(rank)}" for number, rank in silent] + [""]
    counts: dict[int, list[int]] = {}
    for number, rank in enumerate(communicator.ranks):
        if not (rank.silent or rank.dead):
            counts.setdefault(rank.launched, []).append(number)
    if len(counts) > 1:
        kinds.append("MISMATCH")
        warnings += [f"{heading} MISMATCH", "  Communicator ranks have different AllReduce operation counts"]
        for launched, numbers in sorted(counts.items(), key=lambda item: -len(item[1])):
            did = f"launched up to operation {launched}" if launched else "not launched any operations"
            if len(numbers) > 1:
                warnings.append(f"  {len(numbers)} ranks have {did}")
            if len(numbers) == 1 or len(numbers) < size / 2:
                for number in numbers:
                    said = f" has {did}" if len(numbers) == 1 else ""
                    warnings.append(f"  Rank {number}{said} -- {_managed(communicator.ranks[number])}")
        warnings.append("")
    return ",".join(kinds) or "OK"


def _managed(rank: RasRank) -> str:
    return f"GPU {rank.gpu} managed by process {rank.pid} on node {rank.host}"


Talk = Callable[[socket.socket], None]


class FakeRas:
    """Serves `talk` on a port of the loopback address; keeps the commands it was sent."""

    def __init__(self, talk: Talk | None = None, *, port: int = 0, reuse: bool = False) -> None:
        self.json = b"{}"
        self.file: Path | None = None
        """Instead of `json`."""
        self.text = b""
        self.knows_json = True
        self.commands: list[bytes] = []
        self.connections = 0
        fake = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                fake.connections += 1
                (talk or fake.serve)(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            allow_reuse_port = reuse

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]

    def serve(self, connection: socket.socket) -> None:
        """The conversation that NVIDIA's user guide describes; the document is followed by the end."""
        wants_json = False
        with connection.makefile("rb") as lines:
            for line in lines:
                command = line.strip()
                self.commands.append(command)
                words = command.upper()
                if words.startswith(b"CLIENT PROTOCOL "):
                    connection.sendall(b"SERVER PROTOCOL 2\n")
                elif words.startswith(b"TIMEOUT "):
                    connection.sendall(b"OK\n")
                elif self.knows_json and words.startswith(b"SET FORMAT "):
                    wants_json = words.endswith(b"JSON")
                    connection.sendall(b"OK\n")
                elif words in (b"STATUS", b"VERBOSE STATUS"):
                    document = self.json if self.file is None else self.file.read_bytes()
                    connection.sendall(document if wants_json else self.text)
                    return
                else:
                    connection.sendall(b"ERROR: Unknown command " + command + b"\n")

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(fake: FakeRas) -> Iterator[FakeRas]:
    thread = threading.Thread(target=fake.run, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.stop()
        thread.join()


@dataclass
class World:
    """A job with one communicator: ranks in order on these hosts, so many on each."""

    hosts: Sequence[str]
    per_host: int = 1
    first_pid: int = 1000
    ranks: list[RasRank] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [
            RasRank(host, self.first_pid + gpu, gpu) for host in self.hosts for gpu in range(self.per_host)
        ]

    def launch(self, count: int, *but: int) -> None:
        for number, rank in enumerate(self.ranks):
            if number not in but:
                rank.launched = count

    @property
    def job(self) -> RasJob:
        return RasJob([RasCommunicator(self.ranks)])


if __name__ == "__main__":
    served = FakeRas(port=int(sys.argv[1]), reuse=True)
    served.file = Path(sys.argv[2])
    print("listening", flush=True)
    served.run()
