"""Check whether this node's GPUs are fit for jobs; with --drain, drain and resume the node in Slurm.

For Slurm's HealthCheckProgram (deploy/slurm/gpuscope-health-check). The findings are those of the agent on
this machine, or of the driver where none runs. Without --drain nothing is changed. With it, a node is drained
while it has a critical finding or fewer GPUs answer than Slurm has here, and resumed when that is over; a node
that somebody else drained is left alone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.sources.slurm.node_drain import NodeControl
from gpuscope.agent.sources.slurm.plan import SlurmSettings
from gpuscope.base.errors import GpuscopeError, NoGpuReadable, SourceError
from gpuscope.base.files import WORLD_READABLE, write_atomically
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.output import printable
from gpuscope.cli.wiring.live_readers import Picture, find_running
from gpuscope.judge.checks.check import Severity
from gpuscope.judge.checks.drain_reasons import drain_reason, draining, kinds_in, waits_for_reboot
from gpuscope.judge.checks.states import UNKNOWN_USES, State
from gpuscope.model.vendor import next_step, vendors

SETTINGS = ("interval", *COLLECTING_SETTINGS)
LOG_LEVEL = "error"
EPILOG = """Exit code 0 without critical findings, 1 with some, 3 if no GPU is readable.
--drain asks slurmctld only to change something, while GPUs are missing, and twice after a reboot. A node that
was drained for an XID returns only after a reboot: the XID is forgotten after an hour, its cause is not."""
MAX_TEXT = 300
DEFAULT_STATE_DIR = "/run/gpuscope"
WAITS = "\nwaits for a reboot"
MISSING_SECONDS = 15.0
"""GPUs that do not answer for a shorter time drain no node: a driver that is loaded again takes seconds."""
SILENT = frozenset({State.LOST, State.GONE, State.STALE})


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
    node_name, picture, unreadable = _read(args, settings)
    found = draining(picture.get("findings", ()), node_name)
    drainer = _drainer(args, settings) if args.drain else None
    if drainer is not None and not found:
        found = drainer.missing_gpus(count_units(picture, node_name))
    if unreadable is not None and not found:
        raise unreadable
    for finding in found:
        print("; ".join(printable(str(finding.get(part, "")), MAX_TEXT) for part in ("why", "next")))
    if not found:
        print("no critical findings")
    if drainer is not None:
        done = drainer.keep(found)
        if done:
            print(f"node {printable(drainer.node, MAX_TEXT)}: {printable(done, MAX_TEXT)}")
    sys.stdout.flush()
    return 1 if found else 0


def _drainer(args: argparse.Namespace, settings: Settings) -> NodeDrainer:
    node = args.slurm_node or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
    own = settings.view(SlurmSettings)
    control = NodeControl(node, own.slurm_bin_dir, own.slurm_timeout)
    return NodeDrainer(control, node, Path(args.drain_state_dir), Proc(settings.path_procfs))


def _read(args: argparse.Namespace, settings: Settings) -> tuple[str, Picture, NoGpuReadable | None]:
    """This machine's name, its picture, and why no GPU is in it.

    Without numbers there is no judgement, unless Slurm has GPUs here.
    """
    reader = None if args.direct or settings.source != "auto" else find_running(settings.node_name())
    if reader is not None:
        try:
            return settings.node_name(), reader.read(), None
        finally:
            reader.close()
    from gpuscope.cli.wiring import run_agent
    from gpuscope.cli.wiring.live_readers import OwnReader

    own = OwnReader(run_agent.build_collector(settings, ("native",)))
    try:
        picture = own.read_twice(0.8, run_agent.MAX_SECONDS_FOR_ONE_SHOT)
    finally:
        own.close()
    snapshot = own.collector.snapshot
    try:
        if not snapshot.devices:
            run_agent.require_gpu(snapshot)
    except NoGpuReadable as error:
        return snapshot.node, picture, error
    return snapshot.node, picture, None


def count_units(picture: Picture, node: str) -> int:
    """The GPUs and MIG instances that answer: a board that is split counts by its instances, as in Slurm."""
    gpus = [
        gpu
        for gpu in picture.get("gpus", ())
        if gpu.get("node") == node and (gpu.get("state") not in SILENT or gpu.get("why") in UNKNOWN_USES)
    ]
    boards = {gpu.get("parent") for gpu in gpus}
    return sum(gpu.get("uuid") not in boards for gpu in gpus)


def has_driver_library() -> bool:
    """Of any vendor. Loading it calls no driver. Without one nobody here can read GPUs."""
    for library in filter(None, (vendor.driver_library for vendor in vendors().values())):
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


class NodeDrainer:
    """Drains and resumes the node.

    `drain-NODE` holds the reason of the drain that is ours, or nothing. `gpus-NODE` holds the number of GPUs
    that Slurm has here, the most that answered since the boot, and since when some are missing.
    """

    def __init__(
        self,
        control: NodeControl,
        node: str,
        folder: Path,
        proc: Proc,
        *,
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        has_library: Callable[[], bool] = has_driver_library,
    ) -> None:
        self.node = node
        self._control = control
        self._file = folder / f"drain-{node}"
        self._gpus_file = folder / f"gpus-{node}"
        self._proc = proc
        self._uptime = uptime
        self._has_library = has_library

    def missing_gpus(self, answering: int) -> list[Mapping[str, Any]]:
        """A finding if fewer answer than jobs may have, for MISSING_SECONDS: the driver hangs or is not loaded.

        Slurm may be told of more GPUs than there are. So if some answer, more must have answered before; if
        none does, the library of the driver must be here.
        """
        counts = self._read_counts() or self._ask_counts()
        if counts is None:
            return []
        in_slurm, most, since = counts
        most = max(most, answering)
        expected = min(in_slurm, most) if answering else in_slurm
        if answering >= expected or (not answering and not most and not self._has_library()):
            since = -1.0
        elif since < 0:
            since = self._uptime()
        self._write(self._gpus_file, f"{in_slurm} {most} {since:.0f}")
        if since < 0 or self._uptime() - since < MISSING_SECONDS:
            return []
        fresh = self._ask_counts()  # slurm.conf may have changed
        if fresh is not None and fresh[0] != in_slurm:
            self._write(self._gpus_file, f"{fresh[0]} {most} -1")
            return []
        why = f"{answering} of {expected} GPUs that Slurm has here answer"
        return [{
            "kind": "gpus_missing", "severity": Severity.CRITICAL, "why": why,
            "next": next_step(
                "driver_silent", "the driver hangs or is not loaded: dmesg; reboot the node if it stays so"
            ),
        }]  # fmt: skip

    def _read_counts(self) -> tuple[int, int, float] | None:
        try:
            in_slurm, most, since = self._gpus_file.read_text("utf-8").split()
            return int(in_slurm), int(most), float(since)
        except (OSError, ValueError):
            return None

    def _ask_counts(self) -> tuple[int, int, float] | None:
        try:
            return self._control.read().gpus, 0, -1.0
        except SourceError:
            return None  # slurmctld does not answer: asked again with the next check

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
        self._write(self._file, text)

    def _write(self, file: Path, text: str) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode(), mode=WORLD_READABLE)
        except OSError as error:
            raise GpuscopeError(f"{file}: {error.strerror}; give another --drain-state-dir") from None
