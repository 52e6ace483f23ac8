"""Asks a gpuscope server, or a Prometheus, and gives its JSON; a failure is one sentence and an exit code."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from gpuscope.cli.terminal import printable
from gpuscope.errors import GpuscopeError, ServerUnreachable, UsageError

DEFAULT_SERVER = "http://127.0.0.1:9470"
MAX_EXPLANATION = 2000
TIMEOUT_SECONDS = 130


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", default=DEFAULT_SERVER, help=f"the server to ask ({DEFAULT_SERVER})"
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="API token of a server with a login; better in GPUSCOPE_TOKEN than here",
    )


def token_of(args: argparse.Namespace) -> str:
    return args.token or os.environ.get("GPUSCOPE_TOKEN", "")


def read_json(server: str, path: str, *, form: Mapping[str, str] | None = None, token: str = "") -> Any:
    """GET, or POST with a form. An error that the server explains is one sentence."""
    if not server.startswith(("http://", "https://")):
        raise UsageError(f"--server: {server!r} is not an http:// or https:// address")
    body = None if form is None else urllib.parse.urlencode(form).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = server.rstrip("/") + path
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - http and https only, checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310
            return json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            raise GpuscopeError(f"{server}: {_explanation(error)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(f"cannot reach {server}: {reason}; is `gpuscope up` running?") from None


def _explanation(error: urllib.error.HTTPError) -> str:
    try:
        return printable(str(json.load(error)["error"]), MAX_EXPLANATION)
    except (ValueError, KeyError, TypeError):
        return printable(f"HTTP {error.code} {error.reason}")
