"""GET over HTTP or a UNIX socket with a time limit and a size limit, for slurmrestd and slurmctld's pages."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from gpuscope.errors import SourceError, SourceMissing, UsageError

MAX_BODY_BYTES = 512 << 20  # slurmrestd prints 12 KB for each job


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class HttpClient:
    """One request at a time, each on a connection of its own; `headers` are sent with every request."""

    def __init__(self, address: str, setting: str, timeout_seconds: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._timeout = timeout_seconds
        self._headers = headers
        self._is_socket = address.startswith(("/", "unix:"))
        parts = urlsplit(address)
        if not self._is_socket and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UsageError(f"{setting}: {address!r} is not http://HOST:PORT or the path of a UNIX socket")
        self._parts = parts

    def get(self, path: str) -> bytes:
        """The body of a 200. Raises SourceError with `code` for any other status, and for no answer."""
        connection = self._connection()
        try:
            connection.request("GET", self._prefix() + path, headers=dict(self._headers))
            response = connection.getresponse()
            body = response.read(MAX_BODY_BYTES + 1)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise SourceMissing(f"nothing answers at {self._address}: {error.strerror}") from None
        except TimeoutError:
            raise SourceError(f"{self._address} did not answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"{self._address}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status != 200:
            said = " ".join(body[:200].decode("utf-8", "replace").split())
            raise SourceError(f"{self._address}{path} answered {response.status}: {said}", response.status)
        if len(body) > MAX_BODY_BYTES:
            raise SourceError(f"{self._address}{path} answered more than {MAX_BODY_BYTES >> 20} MiB")
        return body

    def _prefix(self) -> str:
        return "" if self._is_socket else self._parts.path.rstrip("/")

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_socket:
            return _SocketConnection(self._address.removeprefix("unix:"), self._timeout)
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)
