"""Watch the GPUs of this machine or of a fleet, and their processes, in the terminal.

`?` shows the keys; they are those of nvitop and htop. If the output is not a terminal, it prints one snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gpuscope.agent.owners.process_usage import ProcessUsage, ProcessUsageReader, send_signal
from gpuscope.base.errors import GpuscopeError, LibraryMissing, UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.live_arguments import (
    add_live_arguments,
    has_unicode,
    only_shown_nodes,
    open_remote_reader,
    terminal_look,
)
from gpuscope.cli.snapshot import view_of
from gpuscope.cli.terminal.fleet_lines import render_snapshot
from gpuscope.cli.terminal.fleet_view import FleetView, ProcessRow
from gpuscope.cli.terminal.spans import printable
from gpuscope.cli.terminal.top_model import Ancestor
from gpuscope.cli.wiring.live_client import PollThread
from gpuscope.cli.wiring.live_readers import LiveReader, Picture

SETTINGS = ("interval", *COLLECTING_SETTINGS)
LOG_LEVEL = "critical"  # a log line would be written over the screen
FLEET_SECONDS = 2.0
TopReading = tuple[FleetView, Mapping[int, Ancestor]]

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
    source = _TopReader(args, settings)
    try:
        if not _is_screen():
            print("\n".join(render_snapshot(source.read_once(), terminal_look(ascii_only=args.ascii))))
            return 0
        if args.server:
            source.check()  # report a wrong address or a missing login before the screen changes
        return _run_app(args, settings, source)
    finally:
        source.close()


def _is_screen() -> bool:
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _run_app(args: argparse.Namespace, settings: Settings, source: _TopReader) -> int:
    try:
        from gpuscope.cli.terminal.top_app import TopApp
    except ModuleNotFoundError as error:
        raise LibraryMissing(f"gpuscope top needs {error.name}; run `pip install textual`") from None
    wrong: list[UsageError] = []

    def fail(error: GpuscopeError) -> None:
        if isinstance(error, UsageError):  # no later try can succeed
            wrong.append(error)
            app.call_later(app.exit)
        else:
            app.post_message(TopApp.FailedReading(str(error)))

    def start() -> None:
        loop = asyncio.get_running_loop()
        # `kill` must leave the terminal as it was. After a hangup there is none, and textual would wait for it.
        loop.add_signal_handler(signal.SIGTERM, app.exit, 128 + signal.SIGTERM, 128 + signal.SIGTERM)
        loop.add_signal_handler(signal.SIGHUP, os._exit, 128 + signal.SIGHUP)
        poll.start()

    app = TopApp(
        unicode=not args.ascii and has_unicode(sys.stdout),
        send_signal=None if args.server or args.readonly else _send_signal,
        no_signal_because="signals are switched off: --readonly" if args.readonly else "",
        on_start=start,
        on_pause=lambda paused: poll.pause(paused),
    )
    poll: PollThread[TopReading] = PollThread(
        source.read,
        max(settings.interval, FLEET_SECONDS) if args.server else settings.interval,
        lambda reading: app.post_message(TopApp.NewReading(*reading)),
        fail,
    )
    try:
        with _stderr_on_terminal():
            app.run(mouse=not args.no_mouse)
    finally:
        poll.stop()
    if wrong:
        raise wrong[0]
    return app.return_code or 0


@contextmanager
def _stderr_on_terminal() -> Iterator[None]:
    """textual draws on standard error, which may be a file: `gpuscope top 2>log`."""
    if sys.stderr.isatty():
        yield
        return
    kept = os.dup(sys.stderr.fileno())
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    try:
        yield
    finally:
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)


class _TopReader:
    """Readings with what this machine's kernel knows about the processes. Opened by the first read: the screen
    is there before the driver is loaded."""

    def __init__(self, args: argparse.Namespace, settings: Settings) -> None:
        self._args = args
        self._settings = settings
        self._reader: LiveReader | None = None
        self._usage = ProcessUsageReader()
        self._first: TopReading | None = None

    def check(self) -> None:
        self._first = self.read()

    def read(self) -> TopReading:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        reader = self._reader or self._open()
        return self._to_reading(reader, reader.read())

    def read_once(self) -> FleetView:
        from gpuscope.cli.wiring.live_readers import OwnReader

        reader = self._open()
        picture = reader.read_twice(0.8, 5.0) if isinstance(reader, OwnReader) else reader.read()
        return self._to_reading(reader, picture)[0]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _open(self) -> LiveReader:
        self._reader = open_remote_reader(self._args, self._settings, with_queue=True)
        if self._reader is None:
            from gpuscope.cli.wiring.live_readers import OwnReader
            from gpuscope.cli.wiring.run_agent import build_collector

            self._reader = OwnReader(build_collector(self._settings, ("native",)))
        return self._reader

    def _to_reading(self, reader: LiveReader, picture: Picture) -> TopReading:
        view = only_shown_nodes(view_of(picture, reader.origin), self._args, self._settings)
        # A simulated PID may be that of a real process.
        if not reader.is_local or view.simulated or not self._usage.sees_the_machine():
            return view, {}
        return with_usage(view, self._usage.read({row.pid for row in view.processes}))


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
        raise UsageError(f"process {row.pid} was not read")
    return send_signal(row.pid, row.start_ticks, number)
