"""Answer an assistant over standard input and output, from the data of a running server. Read-only.

For assistants that start a program (Model Context Protocol, stdio). One that can use a URL needs no program:
it asks the server's `/mcp`. Each line of input is sent there, and each answer is a line of output.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, TextIO

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.settings import Settings
from gpuscope.cli.server_client import add_server_arguments, request_json, token_of

SETTINGS = ()
USAGE = "gpuscope mcp [options]"
EPILOG = """examples:
  claude mcp add gpuscope -- gpuscope mcp --server http://monitor:9470
  claude mcp add --transport http gpuscope http://monitor:9470/mcp      the same, without a program
  GPUSCOPE_TOKEN=… gpuscope mcp --server https://monitor:9470           a server with a login
"""
MCP_PATH = "/mcp"
INTERNAL_ERROR = -32603


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)


def run(args: argparse.Namespace, settings: Settings) -> int:
    forward_lines(args.server, token_of(args), sys.stdin, sys.stdout)
    return 0


def forward_lines(server: str, token: str, lines: TextIO, answers: TextIO) -> None:
    """Until the input ends. An unreachable server is an answer, so that the assistant can say it."""
    for line in lines:
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError:
            message = line  # the server says what is wrong with it
        try:
            answer = request_json(server, "POST", MCP_PATH, message, token=token)
        except GpuscopeError as error:
            answer = _failure(message, str(error))
        if answer is not None:
            print(json.dumps(answer), file=answers, flush=True)


def _failure(message: Any, reason: str) -> dict[str, Any] | None:
    """None for a notification, which has no answer."""
    if not isinstance(message, dict) or "id" not in message:
        return None
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": INTERNAL_ERROR, "message": reason}}
