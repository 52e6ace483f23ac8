"""Check whether this node's GPUs are fit for jobs; with --drain, drain and resume the node in Slurm.

For Slurm's HealthCheckProgram (deploy/slurm/gpuscope-health-check). The findings are those of the agent on
this machine, or of the driver where none runs. Without --drain nothing is changed. With it, a node is drained
while it has a critical finding, and resumed when it has none; a node that somebody else drained is left alone.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.atomic_write import WORLD_READABLE, write_atomically
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.terminal import printable
from gpuscope.errors import GpuscopeError, SourceError
from gpuscope.health.drain_reasons import drain_reason, draining, kinds_in, waits_for_reboot
from gpuscope.owners.proc import Proc
from gpuscope.settings import Settings
from gpuscope.sources.slurm.node_drain import NodeControl
from gpuscope.sources.slurm.plan import SlurmSettings
from gpuscope.wiring.live_readers import Picture, find_running

SETTINGS = ("interval", *COLLECTING_SETTINGS)
LOG_LEVEL = "error"
EPILOG = """Exit code 0 without critical findings, 1 with some, 3 if no GPU is readable.
--drain asks slurmctld only to change something, and once after a reboot. A node that was drained for an XID
returns only after a reboot: the XID is forgotten after an hour, its cause is not."""
MAX_TEXT = 300
DEFAULT_STATE_DIR = "/run/gpuscope"
WAITS = "\nwaits for a reboot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--drain", action="store_true", help="drain this node in Slurm, and resume it")
    parser.add_argument(
        "--slurm-node",
        metavar="NAME",
        default="",
        help="this machine's name in Slurm (default: $SLURMD_NODENAME, or the host name without domain)",
    )
    parser.add_argument("--direct", action="store_true", help="read the driver even if an agent runs here")
    parser.add_argument(
        "--drain-state-dir",
        metavar="DIR",
        default=DEFAULT_STATE_DIR,
        help=f"folder that records why this node was drained; a reboot empties it ({DEFAULT_STATE_DIR})",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    node_name, picture = _read(args, settings)
    found = draining(picture.get("findings", ()), node_name)
    for one in found:
        print(
            f"{printable(str(one.get('why', '')), MAX_TEXT)}; {printable(str(one.get('next', '')), MAX_TEXT)}"
        )
    if not found:
        print("no critical findings")
    if args.drain:
        node = (
            args.slurm_node or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
        )
        own = settings.view(SlurmSettings)
        control = NodeControl(node, own.slurm_bin_dir, own.slurm_timeout)
        keeper = NodeDrainer(control, Path(args.drain_state_dir) / f"drain-{node}", Proc(settings.path_procfs))
        done = keeper.keep(found)
        if done:
            print(f"node {printable(node, MAX_TEXT)}: {printable(done, MAX_TEXT)}")
    sys.stdout.flush()
    return 1 if found else 0


def _read(args: argparse.Namespace, settings: Settings) -> tuple[str, Picture]:
    """This machine's name, and its picture.

    Raises NoGpuReadable: without numbers there is no judgement, and nothing is changed.
    """
    reader = None if args.direct or settings.source != "auto" else find_running(settings.node_name())
    if reader is not None:
        try:
            return settings.node_name(), reader.read()
        finally:
            reader.close()
    from gpuscope.wiring import run_agent
    from gpuscope.wiring.own_reader import OwnReader

    own = OwnReader(run_agent.build_collector(settings, ("native",)))
    try:
        picture = own.read_twice(0.8, run_agent.MAX_SECONDS_FOR_ONE_SHOT)
    finally:
        own.close()
    snapshot = own.collector.snapshot
    if not snapshot.devices:
        run_agent.require_gpu(snapshot)
    return snapshot.node, picture


class NodeDrainer:
    """Drains and resumes the node. The file holds the reason of the drain that is ours, or nothing."""

    def __init__(self, control: NodeControl, file: Path, proc: Proc) -> None:
        self._control = control
        self._file = file
        self._proc = proc

    def keep(self, found: Sequence[Mapping[str, Any]]) -> str:
        """What was done or why not, in a few words; empty if there was nothing to do."""
        try:
            noted = self._file.read_text("utf-8")
        except OSError:
            noted = None  # Slurm was not queried since the machine was started
        try:
            return self._drain(drain_reason(found), noted) if found else self._resume(noted)
        except SourceError as error:
            raise GpuscopeError(f"the node stays as it is in Slurm: {error}") from None

    def _drain(self, reason: str, noted: str | None) -> str:
        if noted and kinds_in(noted) >= kinds_in(reason):
            return ""  # drained before; if an administrator resumed it since, it stays resumed
        now = self._control.read()
        if now.is_drained and not kinds_in(now.reason):
            return f"left alone, drained by {now.by or 'somebody'}: {now.reason}"
        self._control.drain(reason)
        self._note(reason)
        return f"drained: {reason}"

    def _resume(self, noted: str | None) -> str:
        if noted == "":
            return ""
        now = self._control.read()
        if not now.is_drained or not kinds_in(now.reason):
            self._note("")
            return ""
        if waits_for_reboot(now.reason, now.at, self._proc.started_at(0)):
            said = noted == now.reason + WAITS
            self._note(now.reason + WAITS)
            return "" if said else f"stays drained until it is rebooted: {now.reason}"
        self._control.resume()
        self._note("")
        return f"resumed; it was drained: {now.reason}"

    def _note(self, text: str) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, text.encode(), mode=WORLD_READABLE)
        except OSError as error:
            raise GpuscopeError(f"{self._file}: {error.strerror}; give another --drain-state-dir") from None
