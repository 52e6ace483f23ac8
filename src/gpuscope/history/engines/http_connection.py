"""One Prometheus-compatible engine over HTTP: requests out, checked responses back. No PromQL, no numpy.

`open` gives a response whose body is still to be read (the API proxy streams it); `read_series` and `read_list`
read a result while it arrives, `post_form` and `get` one that is small. All are bounded by
`engine_max_response_bytes`. A response that is not Prometheus' API is an `EngineError`.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import httpx2
import orjson

from gpuscope.base.http_config import HttpConfig, split_credentials
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.engines.answer_text import (
    BATCH_BYTES,
    AnswerMemory,
    BatchText,
    ListText,
    MemoryShare,
    SeriesText,
)
from gpuscope.history.engines.query_engine import (
    EngineApiNotFound,
    EngineBadQuery,
    EngineEndpointMissing,
    EngineError,
    EngineFailed,
    EngineNotPrometheus,
    EngineQueryError,
    EngineQueryTimeout,
    EngineRefused,
    EngineResultTooLarge,
    EngineTimeout,
    EngineUnreachable,
)
from gpuscope.history.scrape.fetch import new_client, root_cause

MAX_QUOTED_CHARACTERS: Final = 300
"""Of an engine's own text in our message."""
MAX_ERROR_CHARACTERS: Final = 2000
"""Of an engine's error about a query: a long query is quoted in it."""
MAX_PIECE_BYTES: Final = BATCH_BYTES
MAX_VALUES: Final = 2_000_000
"""JSON values of an answer that is decoded whole: 350 MB at most, in a command of the terminal."""
MAX_DESCRIPTION_BYTES: Final = 1 << 20
"""What an engine says about itself."""
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 150.0
"""Longer than any engine's own query timeout, so that the client gets the engine's error and not ours."""
ENDPOINTS_OF_EVERY_ENGINE: Final = ("/query", "/query_range", "/series", "/labels")

_MALFORMED: Final = (KeyError, IndexError, TypeError, AttributeError, ValueError)

Form = Mapping[str, str | Sequence[str]]
Batch = TypeVar("Batch", bytes, list[Any])


class EngineObserver(Protocol):
    """Counts requests and logs when the engine stops or resumes answering."""

    def answered(self, endpoint: str, status: int, seconds: float) -> None: ...

    def succeeded(self, url: str) -> None: ...

    def failed(self, reason: str, message: str) -> None: ...


class NoObserver:
    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        pass

    def succeeded(self, url: str) -> None:
        pass

    def failed(self, reason: str, message: str) -> None:
        pass


@dataclass(slots=True)
class EngineResponse:
    """A checked response. The caller closes it."""

    url: str
    observer: EngineObserver
    _response: httpx2.Response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        return self._response.headers

    async def raw_pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, still compressed."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except httpx2.HTTPError as error:
            raise self._broken_off(error) from None

    async def read(self, max_bytes: int) -> bytes:
        """The whole body, decompressed."""
        pieces: list[bytes] = []

        async def keep(piece: bytes) -> None:
            pieces.append(piece)

        await self.read_pieces(max_bytes, keep)
        return b"".join(pieces)

    async def read_pieces(self, max_bytes: int, take: Callable[[bytes], Awaitable[None]]) -> None:
        """The body, decompressed, in pieces of at most MAX_PIECE_BYTES."""
        size = 0
        try:
            # httpx2's timeout is for each read: a byte a minute would never end.
            async with asyncio.timeout(ANSWER_SECONDS):
                async for piece in _decompressed(self._response):
                    size += len(piece)
                    if size > max_bytes:
                        LIMITS_REACHED.count("engine_max_response_bytes")
                        raise EngineResultTooLarge(
                            f"{self.url}: the response is larger than {max_bytes} bytes "
                            "(engine_max_response_bytes)"
                        )
                    await take(piece)
        except TimeoutError:
            raise EngineTimeout(f"{self.url} did not answer within {ANSWER_SECONDS:.0f} s") from None
        except (httpx2.HTTPError, zlib.error) as error:
            raise self._broken_off(error) from None

    async def close(self) -> None:
        await self._response.aclose()

    def _broken_off(self, error: Exception) -> EngineUnreachable:
        message = f"{self.url}: the response was cut off: {root_cause(error)}"
        self.observer.failed("broken_off", message)
        return EngineUnreachable(message)


@dataclass(slots=True)
class EngineConnection:
    """Belongs to the event loop that uses it first. `url` is the engine's base address, with its path prefix if
    it has one (Mimir's /prometheus)."""

    url: str
    http: HttpConfig = field(default_factory=HttpConfig)
    observer: EngineObserver = field(default_factory=NoObserver)
    credentials_hint: str = "--store-tenant and --store-http-config set our credentials"
    """How a user gives credentials; part of the message when they are refused."""
    use_environment_proxies: bool = False
    max_response_bytes: int = Limits().engine_max_response_bytes
    memory: AnswerMemory = field(default_factory=AnswerMemory)
    """Of all connections to this engine."""
    _client: httpx2.AsyncClient | None = field(default=None, repr=False)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def open(self, endpoint: str, method: str, path: str, **parts: Any) -> EngineResponse:
        """`parts` are httpx2's: headers, content, data. `endpoint` is its name for the observer."""
        try:
            request = self._request(method, path, **parts)
        except httpx2.InvalidURL as error:
            raise EngineBadQuery(f"the request cannot be passed on: {error}") from None
        started_at = time.monotonic()
        try:
            response = await self._connected().send(request, stream=True)
        except httpx2.TimeoutException:
            seconds = time.monotonic() - started_at
            raise self._failed(EngineTimeout(f"{self.url} did not answer within {seconds:.0f} s")) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._failed(EngineUnreachable(f"cannot reach {self.url}: {root_cause(error)}")) from None
        self.observer.answered(endpoint, response.status_code, time.monotonic() - started_at)
        if _is_usable(endpoint, response):
            self.observer.succeeded(self.url)
            return EngineResponse(self.url, self.observer, response)
        raise self._failed(self._unusable(response, await _read_beginning(response)))

    async def post_form(self, endpoint: str, form: Form, path: str = "") -> dict[str, Any]:
        """The whole answer of `/api/v1/<endpoint>` as decoded JSON; its `status` is `success`."""
        response = await self.open(endpoint, "POST", path or f"/api/v1/{endpoint}", data=dict(form))
        return await self._decode_whole(response, self.max_response_bytes)

    async def get(self, endpoint: str, path: str) -> dict[str, Any]:
        """An answer of at most MAX_DESCRIPTION_BYTES."""
        response = await self.open(endpoint, "GET", path)
        return await self._decode_whole(response, min(MAX_DESCRIPTION_BYTES, self.max_response_bytes))

    async def read_series(
        self, endpoint: str, form: Form, add: Callable[[bytes], int], share: MemoryShare
    ) -> dict[str, Any]:
        """Gives the series of a query's result to `add`, in batches of JSON text, and adds the memory that it
        returns to the share. Returns the answer without them; a ValueError of `add` is an EngineError."""
        response = await self.open(endpoint, "POST", f"/api/v1/{endpoint}", data=dict(form))
        return await self._read_batches(response, SeriesText(), add, share)

    async def read_list(
        self, response: EngineResponse, key: str, add: Callable[[list[Any]], int], share: MemoryShare
    ) -> dict[str, Any]:
        """Gives the elements of the list with this key to `add`, in batches, as `read_series` does."""
        return await self._read_batches(response, ListText(key), add, share)

    async def _read_batches(
        self, response: EngineResponse, text: BatchText[Batch], add: Callable[[Batch], int], share: MemoryShare
    ) -> dict[str, Any]:
        async def take(piece: bytes) -> None:
            batch = text.feed(piece)
            if batch:
                await share.add(add(batch))
                await asyncio.sleep(0)  # a batch takes some milliseconds; pieces may come without waiting

        try:
            await response.read_pieces(self.max_response_bytes, take)
            last, frame = text.finish()
            if last:
                await share.add(add(last))
        except _MALFORMED as error:
            raise self.invalid_answer(error) from None
        finally:
            await response.close()
        return self.decode(frame, response.status)

    async def request_json(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer of a route that is not Prometheus' API; `body` is sent as JSON."""
        parts: dict[str, Any] = {}
        if body is not None:
            parts = {"content": orjson.dumps(body), "headers": {"content-type": "application/json"}}
        response = await self.open(path, method, path, **parts)
        try:
            content = await response.read(self.max_response_bytes)
            self._check_values(content)
            answer = orjson.loads(content) if content else None
        except ValueError as error:
            raise self.invalid_answer(error) from None
        finally:
            await response.close()
        if response.status >= 400:  # Alertmanager's API answers with a text, or with an object with a message
            reason = (
                answer if isinstance(answer, dict) else {"error": answer or f"HTTP status {response.status}"}
            )
            raise self._query_error(reason, response.status)
        return answer

    async def _decode_whole(self, response: EngineResponse, max_bytes: int) -> dict[str, Any]:
        try:
            body = await response.read(max_bytes)
        finally:
            await response.close()
        self._check_values(body)
        return self.decode(body, response.status)

    def decode(self, body: bytes, http_status: int) -> dict[str, Any]:
        """The answer as decoded JSON; its `status` is `success`."""
        try:
            answer = orjson.loads(body)
            status = answer["status"]
        except (ValueError, KeyError, TypeError) as error:
            raise self.invalid_answer(error) from None
        if status != "success":
            raise self._query_error(answer, http_status)
        document: dict[str, Any] = answer
        return document

    def _check_values(self, body: bytes) -> None:
        # Before it is decoded: each value takes up to 160 bytes, also an empty one.
        if sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise EngineResultTooLarge(f"{self.url}: the answer has more than {MAX_VALUES} values")

    def invalid_answer(self, error: Exception) -> EngineError:
        message = f"{self.url}: the answer cannot be read: {error!r}"[: len(self.url) + MAX_QUOTED_CHARACTERS]
        return self._failed(EngineNotPrometheus(message))

    def _query_error(self, answer: Mapping[str, Any], status: int) -> EngineError:
        reason = answer.get("error") or answer.get("message") or "no reason given"
        text = str(reason)[:MAX_ERROR_CHARACTERS]
        message, error_type = f"{self.url}: {text}", answer.get("errorType")
        if error_type == "bad_data" or status == 400:
            return EngineBadQuery(message)
        if error_type == "timeout":
            return EngineQueryTimeout(message)
        if error_type in ("internal", "unavailable") or status in (500, 502):
            return self._failed(EngineFailed(message, status=status if status >= 500 else None))
        return EngineQueryError(message, status=status if status >= 400 else None)

    def _connected(self) -> httpx2.AsyncClient:
        if self._client is None:  # created in the event loop that uses it
            self._client = new_client(self.http, trust_env=self.use_environment_proxies)
        return self._client

    def _request(self, method: str, path: str, **parts: Any) -> httpx2.Request:
        headers = parts.pop("headers", {})
        return self._connected().build_request(
            method,
            f"{self.url}{path}",
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            headers={"accept-encoding": "gzip", **headers},  # the only one that `_decompressed` knows
            extensions={"sni_hostname": self.http.server_name} if self.http.server_name else {},
            **parts,
        )

    def _failed(self, error: EngineError) -> EngineError:
        if error.failure_reason:
            self.observer.failed(error.failure_reason, str(error))
        return error

    def _unusable(self, response: httpx2.Response, text: str) -> EngineError:
        """The error for a response that is not one of Prometheus' API."""
        url, status, path = self.url, response.status_code, response.request.url.path
        is_common = path.endswith(ENDPOINTS_OF_EVERY_ENGINE)
        answer = f"{status} ({text})" if text else str(status)
        if status in (401, 403):
            # 502: a 401 would make our client think that its own credentials were wrong.
            return EngineRefused(f"{url} refuses our credentials with {answer}: {self.credentials_hint}")
        if status == 404 and is_common:
            message = f"{url} has no Prometheus API, it answers {answer}"
            return EngineApiNotFound(f"{message}: a path may be missing, as Mimir's /prometheus")
        if status in (400, 404, 405, 501) and not is_common:
            return EngineEndpointMissing(f"this engine has no {path}: {answer}", status=status)
        if status >= 500:
            return EngineFailed(f"{url} answers {answer}", status=status)
        if status >= 400:  # about this request, in plain text
            return EngineQueryError(f"{url} answers {answer}", status=status)
        kind = response.headers.get("content-type")
        form = f"with {kind}" if kind else "without a content type"
        return EngineNotPrometheus(
            f"{url} answers {path} {form}, not with Prometheus' JSON: check that this is the engine's address"
        )


async def _decompressed(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body in pieces of limited size. httpx2 would unpack each piece whole, and once for each encoding that
    the engine names: three layers of gzip make gigabytes of a kilobyte.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise zlib.error(f"its Content-Encoding is {encoding[:50]!r} and not gzip")
    unpacker = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    async for packed in response.aiter_raw():
        piece = packed if unpacker is None else unpacker.decompress(packed, MAX_PIECE_BYTES)
        while piece:
            yield piece
            await asyncio.sleep(0)  # unpacking gives many pieces without waiting for the engine
            piece = b"" if unpacker is None else unpacker.decompress(unpacker.unconsumed_tail, MAX_PIECE_BYTES)


def _is_usable(endpoint: str, response: httpx2.Response) -> bool:
    """An error in JSON is about the query; 401 and 403 are about our credentials, in whatever format."""
    if response.status_code in (401, 403):
        return False
    # VictoriaMetrics answers application/stream+json to some queries.
    is_json = response.headers.get("content-type", "").partition(";")[0].strip().lower().endswith("json")
    # Alertmanager answers nothing to DELETE, and so without a content type.
    is_done = response.request.method == "DELETE" and response.headers.get("content-length") == "0"
    return is_json or ((is_done or endpoint == "federate") and response.status_code == 200)


async def _read_beginning(response: httpx2.Response) -> str:
    """The first characters of an unusable response, on one line; the rest may be a whole web page."""
    body = b""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            async for piece in _decompressed(response):
                body += piece
                if len(body) > 4 * MAX_QUOTED_CHARACTERS:
                    break
    except TimeoutError:
        pass  # what has arrived is quoted
    except (httpx2.HTTPError, zlib.error) as error:
        return root_cause(error)
    finally:
        await response.aclose()
    return " ".join(body.decode("utf-8", "replace").split())[:MAX_QUOTED_CHARACTERS]


# One request to an engine from code without an event loop: the commands of the terminal.

T = TypeVar("T")


def connect(url: str, *, origin: str, token: str = "") -> EngineConnection:
    """For a command: a URL may hold `user:password@`; UsageError, naming `origin`, if it is not a URL. The
    environment's proxies are used, as by other command-line clients."""
    http = HttpConfig()
    if token:
        http = http.with_headers(("authorization", f"Bearer {token}"))
    address, http = split_credentials(url, http, origin)
    return EngineConnection(
        address.partition("?")[0].rstrip("/"),
        http,
        credentials_hint="give an API token in GPUSCOPE_TOKEN, or http://user:password@… as the address",
        use_environment_proxies=True,
    )


def run_with(connection: EngineConnection, call: Callable[[EngineConnection], Awaitable[T]]) -> T:
    """Runs `call` in an event loop of its own and closes the connection."""

    async def run() -> T:
        try:
            return await call(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def post_form(connection: EngineConnection, endpoint: str, form: Form) -> dict[str, Any]:
    """Prometheus' JSON answer; EngineError if there is none."""
    return run_with(connection, lambda opened: opened.post_form(endpoint, form))


def request_json(connection: EngineConnection, method: str, path: str, body: Any = None) -> Any:
    """The decoded answer of a route that is not Prometheus' API; EngineError if there is none."""
    return run_with(connection, lambda opened: opened.request_json(method, path, body))
