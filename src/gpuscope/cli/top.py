"""Watch the GPUs of this machine or of a fleet, and their processes, in the terminal.

`?` shows the keys; they are those of nvitop and htop. If the output is not a terminal, it prints one snapshot.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.live_arguments import add_live_arguments, has_unicode, open_remote_reader, terminal_look
from gpuscope.cli.snapshot import view_of
from gpuscope.errors import LibraryMissing, UsageError
from gpuscope.owners.process_usage import ProcessUsage, ProcessUsageReader, send_signal
from gpuscope.settings import Settings
from gpuscope.terminal.fleet_view import FleetView, ProcessRow
from gpuscope.terminal.process_tree import Ancestor
from gpuscope.terminal.safe_text import printable
from gpuscope.terminal.snapshot_lines import render_snapshot
from gpuscope.wiring.live_readers import LiveReader
from gpuscope.wiring.poll_thread import PollThread

SETTINGS = ("interval", *COLLECTING_SETTINGS)
LOG_LEVEL = "critical"  # a log line would be written over the screen
FLEET_SECONDS = 2.0

EPILOG = """examples:
  gpuscope top                                  this machine
  gpuscope top --server http://monitor:9470     a whole fleet
  gpuscope top --source demo                    simulated GPUs, to try the keys
A fleet is read every 2 s, this machine at every --interval.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_arguments(parser)
    parser.add_argument("--readonly", action="store_true", help="never send signals to processes")
    parser.add_argument("--ascii", action="store_true", help="no Unicode: bars of # and -")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")


def run(args: argparse.Namespace, settings: Settings) -> int:
    reader = _open_reader(args, settings)
    source = _Source(reader, None if args.server else settings.node_name())
    try:
        if not sys.stdout.isatty() or not sys.stdin.isatty():
            print("\n".join(render_snapshot(source.read()[0], terminal_look(ascii_only=args.ascii))))
            return 0
        return _run_app(args, settings, source)
    finally:
        reader.close()


def _open_reader(args: argparse.Namespace, settings: Settings) -> LiveReader:
    reader = open_remote_reader(args, settings, judges=True)
    if reader is not None:
        return reader
    from gpuscope.wiring.own_reader import OwnReader
    from gpuscope.wiring.run_agent import build_collector

    return OwnReader(build_collector(settings, ("native",)))


def _run_app(args: argparse.Namespace, settings: Settings, source: _Source) -> int:
    try:
        from gpuscope.terminal.top_app import TopApp
    except ModuleNotFoundError as error:
        raise LibraryMissing(f"gpuscope top needs {error.name}; run `pip install textual`") from None
    unicode = not args.ascii and has_unicode(sys.stdout)
    app = TopApp(
        unicode=unicode,
        send_signal=_send_signal if source.is_local and not args.readonly else None,
        no_signal_because="signals are switched off: --readonly" if args.readonly else "",
        on_start=lambda: poll.start(),
        on_pause=lambda paused: poll.pause(paused),
    )
    poll: PollThread[tuple[FleetView, Mapping[int, Ancestor]]] = PollThread(
        source.read,
        max(settings.interval, FLEET_SECONDS) if args.server else settings.interval,
        lambda reading: app.post_message(TopApp.NewReading(*reading)),
        lambda why: app.post_message(TopApp.FailedReading(why)),
    )
    if args.server:
        source.check()  # a wrong address, or a login that is needed, is told before the screen changes
    if not sys.stderr.isatty():
        sys.__stderr__ = sys.__stdout__  # textual draws on standard error, also if that is a file
    try:
        app.run(mouse=not args.no_mouse)
    finally:
        poll.stop()
    return app.return_code or 0


class _Source:
    """Readings with what this machine's kernel knows about the processes."""

    def __init__(self, reader: LiveReader, node: str | None) -> None:
        self._reader = reader
        self._node = node
        self._usage = ProcessUsageReader()
        self.is_local = reader.is_local and self._usage.sees_the_machine()
        self._first: tuple[FleetView, Mapping[int, Ancestor]] | None = None

    def check(self) -> None:
        self._first = self.read()

    def read(self) -> tuple[FleetView, Mapping[int, Ancestor]]:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        view = view_of(self._reader.read(), self._reader.origin)
        if self._node is not None and len(view.nodes) > 1:
            view = view.of_nodes([self._node])
        if not self.is_local or view.simulated:  # a simulated PID may be that of a real process
            return view, {}
        return with_usage(view, self._usage.look({row.pid for row in view.processes}))


def with_usage(view: FleetView, usage: Mapping[int, ProcessUsage]) -> tuple[FleetView, Mapping[int, Ancestor]]:
    me = os.getuid()
    processes = []
    for row in view.processes:
        known = usage.get(row.pid)
        if known is not None:
            row = replace(
                row,
                parent_pid=known.parent_pid,
                cpu_ratio=known.cpu_ratio,
                host_memory_bytes=float(known.memory_bytes),
                command_line=printable(known.command_line, 1000),
                start_ticks=known.start_ticks,
                is_own=me in (0, known.uid),
            )
        processes.append(row)
    ancestors = {
        pid: Ancestor(pid, known.parent_pid, printable(known.user, 60), printable(known.command_line, 1000))
        for pid, known in usage.items()
    }
    return replace(view, processes=tuple(processes)), ancestors


def _send_signal(row: ProcessRow, number: int) -> str:
    if row.start_ticks is None:
        raise UsageError(f"process {row.pid} was not looked at")
    return send_signal(row.pid, row.start_ticks, number)
