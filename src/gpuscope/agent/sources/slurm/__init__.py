"""Source `slurm`: the queue, the nodes and the scheduler of a Slurm cluster, read on one machine.

Runs as any user that may run `squeue`. `--slurm` selects how: by Slurm's commands, slurmrestd, or slurmctld's
own metrics pages; each fills the same `SlurmState`.
"""

from __future__ import annotations

from gpuscope.agent.sources.slurm.backends import open_backend
from gpuscope.agent.sources.slurm.plan import METRICS, RESTD, SlurmSettings
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.source import SourceSpec


def _check_settings(settings: Settings) -> None:
    own = settings.view(SlurmSettings)
    if own.slurm == RESTD and not own.slurm_rest:
        raise UsageError(
            "--slurm restd needs slurmrestd's address: --slurm-rest http://HOST:6820 or its UNIX socket"
        )
    if own.slurm == METRICS and not own.slurm_metrics:
        raise UsageError("--slurm metrics needs slurmctld's address: --slurm-metrics http://CONTROLLER:6817")


def _open(settings: Settings) -> SlurmSource:
    own = settings.view(SlurmSettings)
    return SlurmSource(
        open_backend(own),
        interval=own.slurm_interval,
        slow_interval=own.slurm_slow_interval,
        job_series=own.slurm_job_series,
        pending_series=own.slurm_pending_series,
    )


def _deadline_seconds(settings: Settings) -> float:
    own = settings.view(SlurmSettings)
    return max(3 * own.slurm_interval, own.slurm_interval + 4 * own.slurm_timeout)


SOURCE = SourceSpec(
    name="slurm",
    summary="jobs, nodes, reservations and scheduler of the Slurm cluster",
    open=_open,
    interval_seconds=lambda settings: settings.view(SlurmSettings).slurm_interval,
    deadline_seconds=_deadline_seconds,
    check=_check_settings,
)
