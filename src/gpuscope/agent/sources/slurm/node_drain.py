"""Drains and resumes one Slurm node with scontrol, and reads its GPUs and why it is drained. Needs Slurm's
operator rights.

The only place that changes anything in Slurm; it is used by `gpuscope nodecheck --drain`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpuscope.agent.sources.slurm.gres import parse_gres
from gpuscope.agent.sources.slurm.slurm_commands import IF_MISSING, client_environment
from gpuscope.base.command_runner import Command
from gpuscope.base.errors import SourceError

_GRES = re.compile(r"\bGres=(\S+)")
_STATE = re.compile(r"\bState=(\S+)")
# Free text, then who set it and when; both are Slurm's.
_REASON = re.compile(r"\bReason=(.*?) \[([^\]@\s]+)@([^\]\s]+)\]")


@dataclass(frozen=True, slots=True)
class NodeDrain:
    is_drained: bool
    gpus: int = 0  # that jobs may have here: the node's Gres in slurm.conf
    reason: str = ""
    by: str = ""
    at: float | None = None


def parse_node(text: str) -> NodeDrain:
    """From `scontrol show node -o`. Raises SourceError if it has no state."""
    state = _STATE.search(text)
    if state is None:
        raise SourceError("scontrol show node printed no state")
    gres = _GRES.search(text)
    gpus = sum(resource.count for resource in parse_gres(gres[1] if gres else "") if resource.kind == "gpu")
    reason = _REASON.search(text)
    if reason is None:
        return NodeDrain("DRAIN" in state[1].upper(), gpus)
    at = float(reason[3]) if reason[3].isascii() and reason[3].isdigit() and len(reason[3]) < 13 else None
    return NodeDrain("DRAIN" in state[1].upper(), gpus, reason[1].strip(), reason[2], at)


class NodeControl:
    def __init__(self, node: str, bin_dir: str, timeout_seconds: float) -> None:
        self._node = node
        self._command = Command(
            str(Path(bin_dir) / "scontrol") if bin_dir else "scontrol",
            timeout_seconds,
            program="scontrol",
            if_missing=IF_MISSING,
            environment=client_environment(os.environ),
        )

    def read(self) -> NodeDrain:
        return parse_node(self._command.run_checked("show", "node", self._node, "-o").stdout)

    def drain(self, reason: str) -> None:
        self._update("State=DRAIN", f"Reason={reason}")

    def resume(self) -> None:
        """Ends the drain only: RESUME would also bring back a node that is down for another reason."""
        self._update("State=UNDRAIN")

    def _update(self, *changes: str) -> None:
        self._command.run_checked("update", f"NodeName={self._node}", *changes)
