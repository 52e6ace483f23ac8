"""Native metrics that only AMD's GPUs have, or that have AMD's words in their names.

Rows as in `agent/families/native/table.py`; the readings are those of a `Device`, or of its `AmdValues`.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.native_metric import NativeMetric
from gpuscope.model.native_metric import gpu_counter as _counter
from gpuscope.model.native_metric import gpu_gauge as _gauge

PARTITION_INFO: Final = NativeMetric(
    "gpuscope_partition_info",
    "info",
    "",
    "A partition of an AMD GPU, its GPU and its mode; the value is always 1.",
    ("gpu", "uuid", "parent_uuid", "partition", "profile"),
)
XGMI_METRICS: Final = (
    _gauge("xgmi_up", "link_up", "1 if the XGMI link is up.", "link", unit="0 or 1"),
    _counter("xgmi_bytes", "link_bytes", "XGMI traffic over all links.", "direction"),
    _counter("xgmi_link_bytes", "link_bytes_each", "XGMI traffic by link.", "link", "direction"),
)
AMD_METRICS: Final = (
    _gauge("gtt_total_bytes", "vendor_values.gtt_total_bytes", "Memory of the machine that the GPU can use."),
    _gauge("gtt_used_bytes", "vendor_values.gtt_used_bytes", "Memory of the machine that the GPU uses."),
    _gauge("compute_units", "vendor_values.compute_units", "Compute units of the GPU.", unit="count"),
    _gauge(
        "bad_pages",
        "vendor_values.bad_pages",
        "Pages of GPU memory that are retired, pending (in use until their process ends) or could not be "
        "retired (failed).",
        "state",
        unit="count",
    ),
    _gauge(
        "partition_mode",
        "vendor_values.partition_modes",
        "Compute and memory partition modes of the GPU; the value is always 1.",
        "compute",
        "memory",
        unit="always 1",
    ),
)
