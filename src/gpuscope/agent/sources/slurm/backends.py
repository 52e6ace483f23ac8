"""Selects how Slurm is read: as the setting says, or with `auto` the first way that this machine has."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuscope.agent.sources.slurm.plan import AUTO, COMMANDS, METRICS, RESTD, SlurmSettings
from gpuscope.agent.sources.slurm.slurm_source import Backend


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
        from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands

        commands = SlurmCommands(own.slurm_bin_dir, own.slurm_timeout)
        commands.require()
        return commands
    if mode == RESTD:
        from gpuscope.agent.sources.slurm.restd import SlurmRest

        return SlurmRest(
            own.slurm_rest,
            own.slurm_timeout,
            token_file=own.slurm_rest_token_file,
            user=own.slurm_rest_user,
            max_body_bytes=own.slurm_rest_max_bytes,
        )
    from gpuscope.agent.sources.slurm.metrics_pages import SlurmMetricsPages

    return SlurmMetricsPages(own.slurm_metrics, own.slurm_timeout)
