"""The versions `nvidia-smi --version` names.

From driver 610 on the CUDA version stands behind "CUDA UMD version" and the old line holds a sentence, so only
what looks like a version counts. Drivers without `--version` leave all of it absent.
"""

from __future__ import annotations

import re

from gpuscope.readings import ABSENT, Driver

_CUDA = re.compile(r"[0-9]+\.[0-9]+\Z")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+\Z")


def parse_version(text: str) -> Driver:
    said: dict[str, str] = {}
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        if _VERSION.match(value.strip()):
            said[" ".join(key.lower().split())] = value.strip()
    cuda = [said[key] for key in ("cuda umd version", "cuda version") if _CUDA.match(said.get(key, ""))]
    return Driver(
        driver_version=said.get("kmd version", said.get("driver version", ABSENT)),
        nvml_version=said.get("nvml version", ABSENT),
        cuda_version=cuda[0] if cuda else ABSENT,
    )
