"""A small HTTP client of a gpuscope server or agent, for the commands of the terminal.

It is `blocking_http`, not httpx2: a snapshot of an agent on this machine takes 0.25 s as a whole, and importing
httpx2 would add 0.1 s. Every failure is one sentence. Proxies of the environment are not used.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress, HttpResponse
from gpuscope.base.errors import GpuscopeError, ServerUnreachable
from gpuscope.base.http_config import HttpConfig, split_credentials
from gpuscope.base.limits import LIMITS_REACHED, Limits

ANSWER_SECONDS: Final = 20.0
MAX_QUOTED_CHARACTERS: Final = 300
CREDENTIALS_HINT: Final = "give an API token in GPUSCOPE_TOKEN, or http://user:password@… as the address"


class LoginNeeded(GpuscopeError):
    """The server refuses the credentials, or there are none."""


class EndpointMissing(GpuscopeError):
    """The server is too old for this path, or no gpuscope server."""


class LiveClient:
    """One connection, kept between requests. Not for several threads at once."""

    def __init__(
        self, url: str, *, token: str = "", origin: str = "--server", timeout_seconds: float = ANSWER_SECONDS
    ) -> None:
        """UsageError, naming `origin`, if `url` is not a URL."""
        http = HttpConfig()
        if token:
            http = http.with_headers(("authorization", f"Bearer {token}"))
        address, http = split_credentials(url, http, origin)
        parts = urlsplit(address)
        self.url = address.partition("?")[0].rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._max_bytes = Limits().engine_max_response_bytes
        is_tls = parts.scheme == "https"
        self._http = BlockingHttp(
            HttpAddress(
                host=parts.hostname or "",
                port=parts.port or (443 if is_tls else 80),
                tls=ssl.create_default_context() if is_tls else None,
                host_header=parts.netloc,
            ),
            timeout_seconds=timeout_seconds,
            max_body_bytes=self._max_bytes,
            headers=(*http.headers, ("accept-encoding", "gzip"), ("user-agent", "gpuscope")),
        )

    def close(self) -> None:
        self._http.close()

    def get_json(self, path: str) -> Any:
        return self._decode(self.get(path))

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        answer = self._decode(self.get("/api/v1/query?" + urlencode({"query": expression})))
        try:
            result = answer["data"]["result"]
            return [(dict(series["metric"]), float(series["value"][1])) for series in result]
        except (KeyError, TypeError, ValueError, IndexError):
            raise GpuscopeError(f"{self.url}: the answer is not Prometheus' JSON") from None

    def get(self, path: str) -> bytes:
        try:
            response = self._http.request("GET", self._prefix + path)
        except (OSError, UnicodeError) as error:
            if "larger than" in str(error):
                LIMITS_REACHED.count("engine_max_response_bytes")
            reason = getattr(error, "strerror", None) or str(error)
            raise ServerUnreachable(
                f"cannot reach {self.url}: {reason}; is `gpuscope up` running there?"
            ) from None
        body = self._unpack(response)
        if response.status == 200:
            return body
        explained = _explanation(body)
        if response.status in (401, 403):
            raise LoginNeeded(f"{self.url} needs a login: {CREDENTIALS_HINT}")
        if response.status == 404:
            raise EndpointMissing(f"{self.url} has no {path.partition('?')[0]}: is it a gpuscope server?")
        raise GpuscopeError(f"{self.url} answers {response.status}{explained}")

    def _unpack(self, response: HttpResponse) -> bytes:
        if response.header("content-encoding") != "gzip":
            return response.body
        unpacker = zlib.decompressobj(wbits=31)
        try:
            body = unpacker.decompress(response.body, self._max_bytes)
        except zlib.error as error:
            raise GpuscopeError(f"{self.url}: the response cannot be decompressed: {error}") from None
        if unpacker.unconsumed_tail:
            LIMITS_REACHED.count("engine_max_response_bytes")
            raise GpuscopeError(f"{self.url}: the response is larger than {self._max_bytes} bytes")
        return body

    def _decode(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise GpuscopeError(f"{self.url} does not answer with JSON: is it a gpuscope server?") from None


def _explanation(body: bytes) -> str:
    try:
        told = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {' '.join(told[:MAX_QUOTED_CHARACTERS].split())}"


# A thread that reads at an interval and passes on each reading, so that a screen never waits.

T = TypeVar("T")
log = logging.getLogger("gpuscope.top")


class PollThread(Generic[T]):
    """A daemon: a read that hangs does not keep the program from ending."""

    def __init__(
        self,
        read: Callable[[], T],
        interval: float,
        deliver: Callable[[T], object],
        fail: Callable[[GpuscopeError], object],
    ) -> None:
        self._read = read
        self._interval = interval
        self._deliver = deliver
        self._fail = fail
        self._stop = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self, paused: bool) -> None:
        if paused:
            self._running.clear()
        else:
            self._running.set()

    def stop(self) -> None:
        """Does not wait for a read under way."""
        self._stop.set()
        self._running.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._running.wait()
            if self._stop.is_set():
                return
            try:
                reading = self._read()
            except GpuscopeError as error:
                self._fail(error)
            except Exception as error:  # the screen goes on and says why
                log.exception("reading failed")
                self._fail(GpuscopeError(f"reading failed: {error!r}"))
            else:
                self._deliver(reading)
            # Late reads are not made up for: the next one is due an interval after this one at the earliest.
            due = max(due + self._interval, time.monotonic() + self._interval / 10)
            self._stop.wait(max(0.0, due - time.monotonic()))
