"""JSON requests of commands to a running server: its address, its token, and its errors in one sentence."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from gpuscope.cli.terminal import printable
from gpuscope.errors import GpuscopeError, ServerUnreachable, UsageError

DEFAULT_SERVER = "http://127.0.0.1:9470"
TIMEOUT_SECONDS = 30.0
MAX_ANSWER_BYTES = 256 << 20
MAX_EXPLANATION_CHARACTERS = 2000


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", default=DEFAULT_SERVER, help=f"gpuscope or Alertmanager ({DEFAULT_SERVER})"
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="API token of a server with a login; better in GPUSCOPE_TOKEN than here",
    )


class ServerClient:
    def __init__(self, args: argparse.Namespace) -> None:
        self._server: str = args.server.rstrip("/")
        self._token: str = args.token or os.environ.get("GPUSCOPE_TOKEN", "")
        if not self._server.startswith(("http://", "https://")):
            raise UsageError(f"--server: {self._server!r} is not an http:// or https:// address")

    def get(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> Any:
        return self._call("GET", path + (f"?{urllib.parse.urlencode(parameters)}" if parameters else ""))

    def post(self, path: str, document: object) -> Any:
        return self._call("POST", path, json.dumps(document).encode())

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        # http and https only, checked above
        request = urllib.request.Request(self._server + path, body, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310
                answer = reply.read(MAX_ANSWER_BYTES)
            return json.loads(answer) if answer else None
        except urllib.error.HTTPError as error:
            with error:
                raise GpuscopeError(f"{self._server}: {_explanation(error)}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ServerUnreachable(
                f"cannot reach {self._server}: {printable(str(reason))}; is `gpuscope up` running?"
            ) from None


def _explanation(error: urllib.error.HTTPError) -> str:
    """Alertmanager answers with a JSON text, the login with an object."""
    try:
        document = json.loads(error.read(MAX_EXPLANATION_CHARACTERS))
    except ValueError:
        return printable(f"HTTP {error.code} {error.reason}")
    text = document.get("error", document) if isinstance(document, dict) else document
    return printable(str(text), MAX_EXPLANATION_CHARACTERS)
