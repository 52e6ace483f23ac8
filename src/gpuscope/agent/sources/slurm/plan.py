"""When Slurm is read, and its settings: on one machine per cluster, never by the agents of compute nodes.

With `auto` it is read only if the `slurm` family is served; any other mode reads it for the native family too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.base.setting_values import (
    one_of,
    parse_bytes,
    parse_count,
    parse_interval,
    parse_positive_duration,
    setting,
)
from gpuscope.base.source_plan import SourcePlan

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings

MAX_REST_BYTES = 512 << 20  # 40,000 jobs of 12 KB: a refused answer leaves a cluster without data
AUTO, COMMANDS, RESTD, METRICS, OFF = "auto", "commands", "restd", "metrics", "off"


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    slurm: str = setting(
        AUTO,
        one_of(AUTO, COMMANDS, RESTD, METRICS, OFF),
        "how Slurm is read: its commands, slurmrestd, or slurmctld's own metrics pages (25.11 and newer); "
        "auto: the first that this machine has, and only while the slurm family is served",
        "MODE",
    )
    slurm_interval: float = setting(
        15.0, parse_interval, "read interval of jobs, nodes and scheduler statistics", "15s"
    )
    slurm_slow_interval: float = setting(
        60.0,
        parse_interval,
        "read interval of GPU indices of jobs, reservations, fair shares and licences",
        "60s",
    )
    slurm_timeout: float = setting(
        20.0, parse_positive_duration, "timeout of a Slurm command or request", "20s"
    )
    slurm_bin_dir: str = setting(
        "", str, "folder with squeue, sinfo, sdiag, sshare and scontrol, if they are not in PATH", "DIR"
    )
    slurm_rest: str = setting(
        "", str, "slurmrestd's address: http://HOST:6820, or its UNIX socket", "URL|SOCKET"
    )
    slurm_rest_token_file: str = setting(
        "", str, "file with the JWT for slurmrestd (default: $SLURM_JWT); a socket needs none", "FILE"
    )
    slurm_rest_user: str = setting("", str, "user of the JWT, if the JWT itself does not name it", "NAME")
    slurm_rest_max_bytes: int = setting(
        MAX_REST_BYTES,
        parse_bytes,
        "maximum size of an answer of slurmrestd, which sends 12 KB per job",
        "512MiB",
    )
    slurm_metrics: str = setting("", str, "slurmctld's own metrics pages, on its port", "http://HOST:6817")
    slurm_job_series: int = setting(
        1000, parse_count, "maximum running jobs with series of their own; those with GPUs come first", "N"
    )
    slurm_pending_series: int = setting(
        100, parse_count, "maximum pending jobs with series of their own; the oldest come first", "N"
    )


def _is_requested(settings: Settings) -> bool | None:
    mode = settings.view(SlurmSettings).slurm
    if mode == AUTO:
        return False if settings.source == "demo" else None  # the simulated fleet has a cluster of its own
    return mode != OFF


PLAN = SourcePlan(trust=95, settings=SlurmSettings, families=frozenset({"slurm"}), is_requested=_is_requested)
