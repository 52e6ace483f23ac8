"""What to do about Intel's GPUs: the next step when their source does not answer."""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import Advice

ADVICE: Final = Advice(
    next_steps={},
    source_steps={
        "intel-gpu": "check that the driver xe or i915 is loaded (lspci -k -d 8086:) and read dmesg",
    },
)
