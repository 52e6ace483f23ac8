"""What to do about AMD's GPUs: the next step when their source does not answer."""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import Advice

ADVICE: Final = Advice(
    next_steps={},
    source_steps={
        "amdgpu": "check that the driver amdgpu is loaded (lspci -k -d 1002:) and read dmesg",
    },
)
