"""dcgm-exporter's HPC job mapping: the jobs of a GPU, one `hpc_job` label each.

The lines come with the snapshot (`Ownership.job_lines`) from files named `<gpu>` or `<gpu>.<GPU instance>`; a
worker reads them (`agent/owners/job_files.py`), because the folder may hang. Without a file a GPU has no jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity, number_of
from gpuscope.vendors.nvidia.nvidia_values import gpu_instance_of

MAX_JOBS = 64  # each job is a copy of every series of its GPU


def jobs_of(entity: DcgmEntity, lines: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    gpu = str(number_of(entity.device, entity.device.index))
    if entity.instance is not None:
        gpu = f"{gpu}.{gpu_instance_of(entity.instance)}"
    return lines.get(gpu, ())[:MAX_JOBS]
