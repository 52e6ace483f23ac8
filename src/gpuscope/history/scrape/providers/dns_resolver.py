"""Asks the name servers of resolv.conf for records of one name, as Prometheus' DNS discovery does.

Records and "this name does not exist" are answers; everything else is a `DiscoveryError`. UDP first, then TCP
for an answer that does not fit. The system's resolver is not used, because it has neither SRV nor MX.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from gpuscope.history.scrape.fetch import root_cause
from gpuscope.history.scrape.providers import DiscoveryError
from gpuscope.history.scrape.providers.dns_messages import (
    NAME_ERROR,
    SUCCESS,
    TYPES,
    DnsAnswer,
    DnsRecord,
    decode_answer,
    encode_question,
)

RESOLV_CONF = Path("/etc/resolv.conf")
PORT = 53
TIMEOUT_SECONDS = 2.0
_MAX_NDOTS = 15


@dataclass(frozen=True, slots=True)
class ResolverConfig:
    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = 1

    def names(self, name: str) -> tuple[str, ...]:
        """The fully qualified names to try, in this order."""
        if name.endswith("."):
            return (name,)
        full = f"{name}."
        searched = tuple(f"{name}.{domain.removesuffix('.')}." for domain in self.search)
        return (full, *searched) if name.count(".") + 1 > self.ndots else (*searched, full)


def read_resolver_config(path: Path = RESOLV_CONF) -> ResolverConfig:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise DiscoveryError(f"{path} cannot be read: {error.strerror}") from None
    servers: list[str] = []
    search: tuple[str, ...] = ()
    ndots = 1
    for line in lines:
        match line.split():
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["domain", *domains]:
                search = tuple(domains[:1])
            case ["search", *domains]:
                search = tuple(domains)
            case ["options", *options]:
                ndots = _ndots(options, ndots)
    return ResolverConfig(tuple(servers), search, ndots)


def _ndots(options: list[str], default: int) -> int:
    for option in options:
        key, _, value = option.partition(":")
        if key == "ndots":
            default = min(int(value), _MAX_NDOTS) if value.isascii() and value.isdigit() else 0
    return default


async def resolve(
    name: str, record_type: str, config: ResolverConfig, port: int = PORT
) -> tuple[DnsRecord, ...]:
    """Empty if every name of the search list is known not to exist."""
    failures: list[str] = []
    for full_name in config.names(name):
        try:
            answer = await _query_any_server(full_name, record_type, config.servers, port)
        except DiscoveryError as error:
            failures.append(str(error))  # a later name may still have an answer
            continue
        if answer.code == SUCCESS:
            return answer.records
    if failures:
        raise DiscoveryError(f"{name!r} cannot be resolved: {failures[0]}")
    return ()


async def _query_any_server(name: str, record_type: str, servers: tuple[str, ...], port: int) -> DnsAnswer:
    failures: list[str] = []
    for server in servers:
        try:
            answer = await _query_server(name, record_type, server, port)
        except TimeoutError:
            failures.append(f"{server} does not answer within {TIMEOUT_SECONDS:g} s")
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            failures.append(f"{server}: {root_cause(error)}")
        else:
            if answer.code in (SUCCESS, NAME_ERROR):
                return answer
            failures.append(f"{server} answers with the error code {answer.code}")
    raise DiscoveryError(failures[0] if failures else "resolv.conf names no name server")


async def _query_server(name: str, record_type: str, server: str, port: int) -> DnsAnswer:
    id_ = secrets.randbelow(1 << 16)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        answer = await _query_over_udp(_Question(id_, name, record_type), server, port)
    if answer.is_truncated:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = await _query_over_tcp(_Question(id_, name, record_type), server, port)
        if answer.is_truncated:
            raise ValueError("the answer does not fit into 64 KiB")
    return answer


@dataclass(frozen=True, slots=True)
class _Question:
    id: int
    name: str
    record_type: str

    def encode(self, *, with_edns: bool) -> bytes:
        return encode_question(self.id, self.name, self.record_type, with_edns=with_edns)

    def is_answered_by(self, answer: DnsAnswer) -> bool:
        """Everything else is a late or forged answer."""
        name, record_type = answer.question
        return answer.id == self.id and name == self.name.lower() and record_type == TYPES[self.record_type]


class _UdpExchange(asyncio.DatagramProtocol):
    def __init__(self, question: _Question, result: asyncio.Future[DnsAnswer]) -> None:
        self._question = question
        self._result = result

    def datagram_received(self, data: bytes, addr: object) -> None:
        with contextlib.suppress(ValueError):  # as a packet that was never received: the real one may follow
            answer = decode_answer(data)
            if self._question.is_answered_by(answer) and not self._result.done():
                self._result.set_result(answer)

    def error_received(self, exc: Exception) -> None:
        if not self._result.done():
            self._result.set_exception(exc)


async def _query_over_udp(question: _Question, server: str, port: int) -> DnsAnswer:
    running = asyncio.get_running_loop()
    result: asyncio.Future[DnsAnswer] = running.create_future()
    # A connected socket has a random port and receives packets of this server only.
    transport, _ = await running.create_datagram_endpoint(
        lambda: _UdpExchange(question, result), remote_addr=(server, port)
    )
    try:
        transport.sendto(question.encode(with_edns=True))
        return await result
    finally:
        transport.close()


async def _query_over_tcp(question: _Question, server: str, port: int) -> DnsAnswer:
    reader, writer = await asyncio.open_connection(server, port)
    try:
        message = question.encode(with_edns=False)
        writer.write(struct.pack(">H", len(message)) + message)
        await writer.drain()
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        answer = decode_answer(await reader.readexactly(length))
        if not question.is_answered_by(answer):
            raise ValueError("an answer to another question")
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
