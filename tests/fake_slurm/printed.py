"""What Slurm's clients print for given jobs: `squeue -O` and `scontrol show job -d`, byte by byte.

Written after the output of 22.05, 24.11 and 26.05, whose own behaviour tests/slurm_lab/test_forgery.py shows:
a column with a width is padded and cut off in bytes, and every text of a user is printed as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

USER_TEXTS = (
    "name", "account", "reason", "comment", "command", "work_dir", "features", "wckey", "container", "extra",
    "submit_line", "stdout",
)  # fmt: skip


@dataclass(frozen=True)
class PrintedJob:
    number: int
    user: str = "ann"
    state: str = "RUNNING"
    node: str = "gpu1"
    cpus: int = 1
    indices: tuple[int, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        return self.texts.get(name, "x")

    @property
    def held(self) -> str:
        listed = ",".join(map(str, self.indices))
        return f"gpu:a100:{len(self.indices)}(IDX:{listed})" if self.indices else ""


def print_squeue(jobs: Iterable[PrintedJob], argument: str) -> bytes:
    return b"".join(b"".join(_field(job, part) for part in argument.split(",")) + b"\n" for job in jobs)


def _field(job: PrintedJob, part: str) -> bytes:
    name, _, form = part.partition(":")
    value = _value(job, name).encode()
    if not form.startswith("."):
        return value + form.encode()
    width = int(form[1:])
    return value[:width].rjust(width)


def _value(job: PrintedJob, name: str) -> str:
    values = {
        "JobID": str(job.number), "ArrayJobID": str(job.number), "ArrayTaskID": "N/A", "HetJobID": "N/A",
        "UserName": job.user, "Account": job.text("account"), "Partition": "gpu", "State": job.state,
        "NumNodes": "1", "NumCPUs": str(job.cpus), "NodeList": job.node, "SubmitTime": "1", "EligibleTime": "1",
        "tres-alloc": f"cpu={job.cpus},node=1" + (f",gres/gpu={len(job.indices)}" if job.indices else ""),
        "StartTime": "2", "EndTime": "N/A", "QOS": "normal", "Reason": job.text("reason"),
        "Name": job.text("name"),
    }  # fmt: skip
    return values[name]


def print_jobs(jobs: Iterable[PrintedJob]) -> str:
    """`scontrol show job -d`, in the order of 26.05: what a user wrote stands on both sides of JOB_GRES."""
    return "".join(print_job(job) for job in jobs)


def print_job(job: PrintedJob) -> str:
    text = job.text
    return (
        f"JobId={job.number} JobName={text('name')}\n"
        f"   UserId={job.user}(1) GroupId={job.user}(1) MCS_label=N/A\n"
        f"   Priority=1 Nice=0 Account={text('account')} QOS=normal WCKey={text('wckey')}\n"
        f"   JobState={job.state} Reason={text('reason')} Dependency=(null)\n"
        f"   JOB_GRES={job.held.partition('(')[0] or '(null)'}\n"
        f"     Nodes={job.node} CPU_IDs=0 Mem=1024 GRES={job.held}\n"
        f"   MinCPUsNode=1 MinMemoryNode=1G MinTmpDiskNode=0\n"
        f"   Features={text('features')} DelayBoot=00:00:00\n"
        f"   Command={text('command')}\n"
        f"   SubmitLine={text('submit_line')}\n"
        f"   WorkDir={text('work_dir')}\n"
        f"   Comment={text('comment')} Extra={text('extra')} Container={text('container')}\n"
        f"   StdOut={text('stdout')}\n"
        f"   \n\n"
    )
