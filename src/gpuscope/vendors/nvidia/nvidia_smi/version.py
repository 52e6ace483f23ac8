"""Parses the versions in `nvidia-smi --version`.

Since driver 610 the CUDA version is named "CUDA UMD version" and the old line contains a sentence, so only
values in the form of a version are used. Without `--version` (older drivers) all versions are absent.
"""

from __future__ import annotations

import re

from gpuscope.model.readings import ABSENT, Driver
from gpuscope.vendors.nvidia.nvidia_values import known_values

_CUDA = re.compile(r"[0-9]+\.[0-9]+\Z")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+\Z")


def parse_version(text: str) -> Driver:
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        if _VERSION.match(value.strip()):
            values[" ".join(key.lower().split())] = value.strip()
    cuda = [values[key] for key in ("cuda umd version", "cuda version") if _CUDA.match(values.get(key, ""))]
    return Driver(
        driver_version=values.get("kmd version", values.get("driver version", ABSENT)),
        library_versions=known_values(
            nvml=values.get("nvml version", ABSENT), cuda=cuda[0] if cuda else ABSENT
        ),
    )
