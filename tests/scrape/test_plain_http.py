"""The lean client gives what httpx2 gives, for good and bad responses, and keeps its connection."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Awaitable, Callable

import pytest

from gpuscope.base.http_config import HttpConfig
from gpuscope.history.scrape.fetch import BodyShare, Fetched, ScrapeBodyBudget, ScrapeError, TargetClient, fetch

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
BODY = b"".join(b"series_%d %d\n" % (number, number) for number in range(20_000))
"""More than the client buffers."""


def sized(body: bytes, extra: bytes = b"") -> bytes:
    return HEAD + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


class Scripted:
    """A server that sends the same bytes for each request, in parts, and counts connections and requests."""

    def __init__(self, response: bytes, *, part: int = 0, close: bool = False, hold: bool = False) -> None:
        self._response, self._part, self._close, self._hold = response, part or len(response) or 1, close, hold
        self.connections = self.requests = 0
        self.heads: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            self.requests += 1
            for at in range(0, len(self._response), self._part):
                writer.write(self._response[at : at + self._part])
                await writer.drain()
            if self._close:
                break
            if self._hold:
                await reader.read()


async def once(client: TargetClient, max_bytes: int = 1 << 20) -> Fetched:
    with ScrapeBodyBudget(1 << 30).share() as share:
        async with asyncio.timeout(5):
            return await fetch(client, max_bytes=max_bytes, share=share)


def with_server(
    script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    work: Callable[[TargetClient], Awaitable[None]],
    *,
    plain: bool = True,
    http: HttpConfig | None = None,
    path: str = "/metrics",
) -> None:
    async def run() -> None:
        handlers: list[asyncio.Task[None]] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await script(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(
            lambda reader, writer: handlers.append(asyncio.create_task(handle(reader, writer))), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}{path}"
        client = TargetClient(url, http or HttpConfig(), timeout_seconds=5, plain=plain)
        try:
            await work(client)
        finally:
            await client.aclose()
            server.close()
            await asyncio.gather(*handlers)

    asyncio.run(run())


def outcome(script: Scripted, *, plain: bool) -> Fetched | str:
    """What a scrape gives: the body, or "error"."""
    found: list[Fetched | str] = []

    async def work(client: TargetClient) -> None:
        try:
            found.append(await once(client))
        except (ScrapeError, TimeoutError):
            found.append("error")

    with_server(script, work, plain=plain)
    return found[0]


RESPONSES: dict[str, tuple[bytes, bool]] = {
    "length": (sized(b"a 1\n"), True),
    "large": (sized(BODY), True),
    "empty": (sized(b""), True),
    "chunks": (chunked(BODY, 1000), True),
    "one chunk": (chunked(b"a 1\n", 100), True),
    "until the end": (HEAD + b"\r\n" + BODY, True),
    "HTTP/1.0": (HEAD.replace(b"1.1", b"1.0") + b"\r\na 1\n", True),
    "gzip": (sized(gzip.compress(BODY), b"Content-Encoding: gzip\r\n"), True),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + sized(b"a 1\n"), True),
    "connection: close": (sized(b"a 1\n", b"Connection: close\r\n"), True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", False),
    "not found": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n", False),
    "unknown status": (b"HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n", False),
    "short": (HEAD + b"Content-Length: 10\r\n\r\na 1\n", False),
    "chunks cut": (chunked(b"a 1\n", 2)[:-5], False),
    "bad chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\na 1\n\r\n", False),
    "two lengths": (HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\na 1\n", False),
    "negative length": (HEAD + b"Content-Length: -1\r\n\r\na 1\n", False),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", False),
    "nothing": (b"", False),
    "large head": (HEAD + b"X: %b\r\n\r\n" % (b"x" * 300_000), False),
    "endless head": (HEAD + b"X: " + b"x" * 300_000, False),
    "many headers": (HEAD + b"X: 1\r\n" * 60_000 + b"\r\n", False),
    "upgrade": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", False),
}


@pytest.mark.parametrize("part", [0, 1000, 7], ids=["whole", "in parts", "in small parts"])
@pytest.mark.parametrize("name", RESPONSES)
def test_both_clients_agree(name: str, part: int) -> None:
    response, is_good = RESPONSES[name]
    if part == 7 and len(response) > 10_000:
        pytest.skip("only short responses are sent in small parts")
    lean = outcome(Scripted(response, part=part, close=True), plain=True)
    assert lean == outcome(Scripted(response, part=part, close=True), plain=False)
    assert (lean != "error") is is_good


def test_the_request_is_that_of_httpx2() -> None:
    http = HttpConfig(headers=(("X-Scope-OrgID", "a"), ("Accept", "own"), ("authorization", "Bearer b")))
    heads: list[bytes] = []
    for plain in (True, False):
        script = Scripted(sized(b"a 1\n"))

        async def work(client: TargetClient) -> None:
            await once(client)

        with_server(script, work, plain=plain, http=http, path="/metrics?a=b c&d=é")
        lines = script.heads[0].lower().split(b"\r\n")
        heads.append(b"\n".join(sorted(line for line in lines if not line.startswith(b"host:"))))
        assert any(line.startswith(b"host: 127.0.0.1:") for line in lines)
    assert heads[0] == heads[1]


def test_the_connection_is_kept() -> None:
    script = Scripted(sized(b"a 1\n"))

    async def work(client: TargetClient) -> None:
        for _ in range(3):
            assert (await once(client)).body == b"a 1\n"

    with_server(script, work)
    assert (script.connections, script.requests) == (1, 3)


@pytest.mark.parametrize("size", [66_000, 100_000, 150_000, 250_000])
def test_a_large_body_leaves_the_connection_usable(size: int) -> None:
    """The last bytes may arrive while more is buffered than the client allows."""
    script = Scripted(sized(BODY[:size]))

    async def work(client: TargetClient) -> None:
        for _ in range(4):
            assert (await once(client)).body == BODY[:size]

    with_server(script, work)
    assert (script.connections, script.requests) == (1, 4)


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    script = Scripted(sized(b"a 1\n"), close=True)

    async def work(client: TargetClient) -> None:
        for _ in range(3):
            assert (await once(client)).body == b"a 1\n"

    with_server(script, work)
    assert script.connections == script.requests == 3


def test_a_request_that_meets_a_closing_connection_is_sent_again() -> None:
    """The server closes when the second request arrives, without a response: as after its idle timeout."""
    served = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        served += 1
        writer.write(sized(b"a %d\n" % served))
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")

    async def work(client: TargetClient) -> None:
        assert (await once(client)).body == b"a 1\n"
        assert (await once(client)).body == b"a 2\n"

    with_server(script, work)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nb 2\n", b"junk"])
def test_bytes_after_a_response_are_not_read_as_the_next_one(extra: bytes) -> None:
    script = Scripted(sized(b"a 1\n") + extra)

    async def work(client: TargetClient) -> None:
        for _ in range(2):
            try:
                assert (await once(client)).body == b"a 1\n"
            except ScrapeError:
                assert extra == b"junk"

    with_server(script, work)
    assert script.connections == 2


def test_a_body_above_the_limit_is_refused_while_it_arrives() -> None:
    script = Scripted(HEAD + b"\r\n" + b"a" * 3_000_000, hold=True)

    async def work(client: TargetClient) -> None:
        with pytest.raises(ScrapeError, match="body_size_limit"):
            await once(client, max_bytes=100_000)

    with_server(script, work)


def test_a_slow_reader_pauses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is not collected in memory faster than its share of the limit allows."""
    taken: list[int] = []
    add = BodyShare.add

    def count(self: BodyShare, size: int) -> None:
        taken.append(size)
        add(self, size)

    monkeypatch.setattr(BodyShare, "add", count)

    async def work(client: TargetClient) -> None:
        assert (await once(client)).body == BODY

    with_server(Scripted(sized(BODY)), work)
    assert len(taken) > 1
    assert sum(taken) == len(BODY)


def test_a_cancelled_scrape_closes_the_connection() -> None:
    script = Scripted(HEAD + b"Content-Length: 10\r\n\r\na", hold=True)

    async def work(client: TargetClient) -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError), ScrapeBodyBudget(1000).share() as share:
                async with asyncio.timeout(0.2):
                    await fetch(client, max_bytes=1000, share=share)

    with_server(script, work)
    assert script.connections == 2
