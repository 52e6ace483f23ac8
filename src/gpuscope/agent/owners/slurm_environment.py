"""A process' Slurm variables from its environment, for what its cgroup does not say.

The environment is text of the user, and only root can read that of other users. The job id is used only if the
cgroup has none (proctrack/linuxproc, or the SLUID paths of Slurm 26.05); account, partition and array are
nowhere else on the node. In every component of a heterogeneous job they are those of its leader, and nothing
names the component: there only the step is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe

_NUMBER = re.compile(r"\d{1,10}\Z", re.ASCII)
_NAME = re.compile(r"[\w.@+-]{1,64}\Z", re.ASCII)
WANTED: Final = (
    b"SLURM_JOB_ID", b"SLURM_JOBID", b"SLURM_STEP_ID", b"SLURM_STEPID", b"SLURM_ARRAY_JOB_ID",
    b"SLURM_ARRAY_TASK_ID", b"SLURM_JOB_ACCOUNT", b"SLURM_JOB_PARTITION", b"SLURM_JOB_USER", b"SLURM_HET_SIZE",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmVariables:
    job: Maybe[str] = ABSENT
    job_step: Maybe[str] = ABSENT
    job_array: Maybe[str] = ABSENT
    job_account: Maybe[str] = ABSENT
    job_partition: Maybe[str] = ABSENT


NO_VARIABLES: Final = SlurmVariables()


def parse_environment(text: bytes) -> SlurmVariables:
    if b"SLURM_JOB" not in text:
        return NO_VARIABLES
    values: dict[bytes, str] = {}
    for entry in text.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in WANTED:
            values.setdefault(name, value.decode("utf-8", "replace"))

    def pick(pattern: re.Pattern[str], *names: bytes) -> Maybe[str]:
        return next((values[name] for name in names if name in values and pattern.match(values[name])), ABSENT)

    step = pick(_NAME, b"SLURM_STEP_ID", b"SLURM_STEPID")
    if b"SLURM_HET_SIZE" in values:
        return SlurmVariables(job_step=step)
    array, task = pick(_NUMBER, b"SLURM_ARRAY_JOB_ID"), pick(_NUMBER, b"SLURM_ARRAY_TASK_ID")
    return SlurmVariables(
        job=pick(_NUMBER, b"SLURM_JOB_ID", b"SLURM_JOBID"),
        job_step=step,
        job_array=ABSENT if array is ABSENT or task is ABSENT else f"{array}_{task}",
        job_account=pick(_NAME, b"SLURM_JOB_ACCOUNT"),
        job_partition=pick(_NAME, b"SLURM_JOB_PARTITION"),
    )
