"""What differs between the versions of Slurm that are read, 20.11 to 26.05: the one table of differences.

Commands are not chosen by version: a client refuses a field it does not have by name, and then the field is
left out (`OPTIONAL_FIELDS`). Text that only some versions print is absent where it is not printed. slurmrestd
has one API version per release, tried from the newest.
"""

from __future__ import annotations

import re
from typing import Final

OLDEST: Final = (20, 11)
NEWEST: Final = (26, 5)

OPTIONAL_FIELDS: Final = {
    "squeue": frozenset({"HetJobID", "EligibleTime", "QOS", "tres-alloc", "EndTime"}),
    "sinfo": frozenset({"StateComplete", "GresUsed", "User", "Timestamp", "CPUsLoad", "FreeMem"}),
    "sshare": frozenset({"LevelFS"}),
}
"""Fields of `-O` and `-o` that a version may not have. Without `StateComplete` (20.11) the
flags are read from the state and its suffix. All other fields are in every version."""

REST_API: Final = (
    ((26, 5), "v0.0.45"),
    ((25, 11), "v0.0.44"),
    ((25, 5), "v0.0.43"),
    ((24, 11), "v0.0.42"),
    ((24, 5), "v0.0.41"),
    ((23, 11), "v0.0.40"),
    ((23, 2), "v0.0.39"),
    ((22, 5), "v0.0.38"),
    ((21, 8), "v0.0.37"),
)
"""The newest API of slurmrestd by release. v0.0.36 (20.11) is not read: it shows a drained node as `allocated`,
without flags, and neither its allocated CPUs nor its partitions. Up to v0.0.38 a number is a number and a job's
state is a text; from v0.0.39 on many numbers are `{"set", "infinite", "number"}` and a state is a list."""

METRICS_PAGES_SINCE: Final = (25, 11)
"""`MetricsType=metrics/openmetrics` in slurm.conf: slurmctld serves its own pages. Older ones refuse it."""

SHARD_COUNTS_SINCE: Final = (23, 2)
"""`GresUsed` of shards and MPS: `shard:h100:2(-/2,2/2)` since; before, `shard:h100:1(IDX:1)`, the number of
GPUs of which jobs have shares: how many shares is not known then."""

ACCOUNT_IN_PROLOG_SINCE: Final = (22, 5)
"""`SLURM_JOB_ACCOUNT` of a prolog: 20.11 does not set it, and the notes of the prolog lack the account."""

_VERSION = re.compile(r"(\d{2})\.(\d{2})(?:\.(\d+))?")


def parse_version(text: str) -> str:
    """`slurm-wlm 22.05.8` is `22.05.8`; empty if the text has no version."""
    match = _VERSION.search(text)
    return match[0] if match else ""


def refused_field(complaint: str) -> str:
    """The field that a client refused: `squeue: error: Invalid job format specification: LicensesAlloc`."""
    match = re.search(r"[Ii]nvalid (?:\w+ )*(?:specification|field requested)[:,]? ?\"?([\w/-]+)", complaint)
    return match[1] if match else ""
