"""GET over HTTP or a UNIX socket with a time limit and a size limit, for slurmrestd and slurmctld's pages."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.base.errors import SourceError, SourceMissing, SourceTimeout, UsageError

MAX_REASON_BYTES: Final = 64 << 10
MAX_REASON_CHARACTERS: Final = 200


class HttpClient:
    """One request at a time, each on a connection of its own; `headers` are sent with every request."""

    def __init__(
        self,
        address: str,
        setting: str,
        timeout_seconds: float,
        headers: Mapping[str, str],
        *,
        max_body_bytes: int,
    ) -> None:
        self._address = address
        self._max_body_bytes = max_body_bytes
        self._timeout = timeout_seconds
        self._headers = [(name.lower(), value) for name, value in headers.items()]
        self._prefix = ""
        if address.startswith(("/", "unix:")):
            self._http_address = HttpAddress(unix_socket=address.removeprefix("unix:"))
            return
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{setting}: {address!r} is not http://HOST:PORT or the path of a UNIX socket")
        is_tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._http_address = HttpAddress(
            parts.hostname,
            parts.port or (443 if is_tls else 80),
            tls=ssl.create_default_context() if is_tls else None,
            host_header=parts.netloc.rpartition("@")[2],
        )

    def get(self, path: str) -> bytes:
        """The body of a 200. Raises SourceError with `code` for any other status, and for no answer."""
        try:
            with BlockingHttp(
                self._http_address, timeout_seconds=self._timeout, max_body_bytes=self._max_body_bytes
            ) as http:
                response = http.request("GET", self._prefix + path, self._headers)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise SourceMissing(f"nothing answers at {self._address}: {error.strerror}") from None
        except TimeoutError:
            raise SourceTimeout(f"{self._address} did not answer within {self._timeout:g} s") from None
        except OSError as error:
            raise SourceError(f"{self._address}: {error or type(error).__name__}") from None
        if response.status != 200:
            why = _reason(response.body)
            raise SourceError(f"{self._address}{path} answered {response.status}: {why}", response.status)
        return response.body


def _reason(body: bytes) -> str:
    """What slurmrestd says behind two lines about itself, or the beginning of a body that is not its JSON."""
    try:
        document = json.loads(body) if len(body) <= MAX_REASON_BYTES else None
    except (ValueError, RecursionError):
        document = None
    errors = document.get("errors") if isinstance(document, Mapping) else None
    return complaint(errors or body[:MAX_REASON_CHARACTERS].decode("utf-8", "replace"))


def complaint(errors: object) -> str:
    """The first of slurmrestd's `errors`, in one line."""
    first = errors[0] if isinstance(errors, list) else errors
    if isinstance(first, Mapping):
        first = first.get("description") or first.get("error")
    return " ".join(str(first).split())[:MAX_REASON_CHARACTERS]
