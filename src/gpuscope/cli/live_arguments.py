"""Options of the commands that show live GPUs (`snapshot`, `top`, `free`), and the reader that they choose."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TextIO

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.output import wants_colour
from gpuscope.cli.server_client import token_of
from gpuscope.cli.terminal.fleet_view import FleetView
from gpuscope.cli.terminal.spans import Look
from gpuscope.cli.wiring.live_client import LiveClient
from gpuscope.cli.wiring.live_readers import LiveReader, ServerReader, find_running

DEFAULT_WIDTH = 80
PIPE_WIDTH = 160
"""Without a terminal: more than 80 cells, because a file has no edge; not unlimited, because bars grow."""


def add_live_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help="show the fleet of this gpuscope server")
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="API token of a server with a login; better in GPUSCOPE_TOKEN than here",
    )
    parser.add_argument(
        "--direct", action="store_true", help="read the driver even if an agent or a server runs here"
    )


def open_remote_reader(
    args: argparse.Namespace, settings: Settings, *, with_placement: bool = False, with_queue: bool = False
) -> LiveReader | None:
    """The server of --server, or an agent or server on this machine; None: read the driver."""
    if args.server:
        client = LiveClient(args.server, token=token_of(args))
        return ServerReader(client, with_placement=with_placement, with_queue=with_queue)
    if args.direct or settings.source != "auto":
        return None
    return find_running(settings.node_name())


def only_shown_nodes(view: FleetView, args: argparse.Namespace, settings: Settings) -> FleetView:
    """With --server the nodes of the flag --node, or all; otherwise this machine only."""
    chosen = getattr(args, "node", "")  # the flag: GPUSCOPE_NODE is this machine's name for its own agent
    if args.server and chosen:
        if chosen not in {node.name for node in view.nodes}:
            raise UsageError(f"--node: {view.origin} has no node {chosen!r}")
        return view.of_nodes([chosen])
    if not args.server and len(view.nodes) > 1:
        return view.of_nodes([settings.node_name()])
    return view


def terminal_look(stream: TextIO | None = None, ascii_only: bool = False) -> Look:
    """COLUMNS and LINES of the environment override the terminal's own size, as in other programs."""
    stream = stream or sys.stdout
    default = DEFAULT_WIDTH if stream.isatty() else PIPE_WIDTH
    width = shutil.get_terminal_size((default, 24)).columns
    return Look(
        width=max(20, width), colour=wants_colour(stream), unicode=not ascii_only and has_unicode(stream)
    )


def has_unicode(stream: TextIO) -> bool:
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    return encoding.startswith("utf") and os.environ.get("TERM") not in ("linux", "dumb", "vt100", "vt220")
