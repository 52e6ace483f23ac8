"""Converts a cell to a number as nvidia_gpu_exporter does; None if it is not a number.

For compatibility any text with exactly one number is accepted: the model name "NVIDIA L40S" is 40 and the
driver version "591.86" is 591.86, while "590.48.01" (two numbers) is None.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

_NUMBER = re.compile(r"[+-]?(?:[0-9]*[.])?[0-9]+")
_HEX = re.compile(r"0x([0-9a-fA-F]+)\Z")

_WORDS: Final = {
    **dict.fromkeys(("enabled", "yes", "active"), 1.0),
    **dict.fromkeys(("disabled", "no", "not active", "default"), 0.0),
    "exclusive_thread": 1.0,
    "prohibited": 2.0,
    "exclusive_process": 3.0,
}
_STATES: Final = {  # fields with an NVML state: only these words are accepted
    "gpu_recovery_action": {
        "none": 0.0,
        "gpu reset": 1.0,
        "reset": 1.0,
        "node reboot": 2.0,
        "reboot": 2.0,
        "drain p2p": 3.0,
        "drain and reset": 4.0,
    },
    "fabric.state": {"not supported": 0.0, "not started": 1.0, "in progress": 2.0, "completed": 3.0},
}


@lru_cache(maxsize=4096)  # cells repeat between GPUs and cycles
def cell_value(header: str, cell: str, multiplier: float) -> float | None:
    text = cell.strip()
    if header in _STATES:
        return _STATES[header].get(text.lower())
    if text.startswith("0x"):
        return _hex_value(text)
    words = text.lower()
    return _WORDS[words] if words in _WORDS else _only_number(words, multiplier)


def _hex_value(text: str) -> float | None:
    match = _HEX.match(text)
    if match is None:
        return None
    number = int(match[1], 16)
    return float(number) if number < 1 << 64 else None


def _only_number(text: str, multiplier: float) -> float | None:
    found = _NUMBER.findall(text)
    if len(found) != 1:
        return None
    value = float(found[0]) * multiplier
    return value if math.isfinite(value) else None


def plain_uuid(uuid: str) -> str:
    """The UUID in labels: lower case, without `GPU-`."""
    return uuid.strip().lower().removeprefix("gpu-")
