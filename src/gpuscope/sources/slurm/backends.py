"""Which way Slurm is read: by the setting, or with `auto` the first that this machine has."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuscope.errors import SourceMissing
from gpuscope.sources.slurm.plan import AUTO, COMMANDS, METRICS, RESTD, SlurmSettings
from gpuscope.sources.slurm.source import Backend


def choose_mode(own: SlurmSettings) -> str:
    if own.slurm != AUTO:
        return own.slurm
    if shutil.which(str(Path(own.slurm_bin_dir) / "squeue") if own.slurm_bin_dir else "squeue"):
        return COMMANDS
    if own.slurm_rest:
        return RESTD
    return METRICS if own.slurm_metrics else COMMANDS


def open_backend(own: SlurmSettings) -> Backend:
    """Raises SourceMissing: what is missing, and what to do."""
    mode = choose_mode(own)
    if mode == COMMANDS:
        from gpuscope.sources.slurm.commands import SlurmCommands

        commands = SlurmCommands(own.slurm_bin_dir, own.slurm_timeout)
        commands.require()
        return commands
    raise SourceMissing(f"--slurm {mode} is not built yet")
