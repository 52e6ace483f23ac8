"""A receipt in the form that jobstats keeps in Slurm's AdminComment, `JS1:` and gzipped JSON, for reportseff.

CPU and main memory are not known here and left out; reportseff then takes them from sacct. A GPU whose work is
not known is left out too: reportseff would show 0 for it.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from gpuscope.judge.reports.receipt.job_receipt import JobReceipt

PREFIX = "JS1:"


def jobstats_summary(receipt: JobReceipt) -> str:
    document = json.dumps(_document(receipt), separators=(",", ":"), sort_keys=True)
    # No time in the header: the same receipt is the same text.
    return PREFIX + base64.b64encode(gzip.compress(document.encode(), mtime=0)).decode("ascii")


def _document(receipt: JobReceipt) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {}
    for gpu in receipt.gpus:
        if gpu.busy_ratio is None or gpu.memory_peak_bytes is None or not gpu.memory_total_bytes:
            continue
        node = nodes.setdefault(
            gpu.node, {"gpu_utilization": {}, "gpu_used_memory": {}, "gpu_total_memory": {}}
        )
        node["gpu_utilization"][gpu.gpu] = round(100 * gpu.busy_ratio, 1)
        node["gpu_used_memory"][gpu.gpu] = int(gpu.memory_peak_bytes)
        node["gpu_total_memory"][gpu.gpu] = int(gpu.memory_total_bytes)
    return {"gpus": len(receipt.gpus), "total_time": round(receipt.run_seconds), "nodes": nodes}
