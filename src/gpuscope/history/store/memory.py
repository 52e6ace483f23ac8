"""How much memory this process may use: the machine's memory or the limit of its control group.

A container's limit is smaller than the machine's memory and is not in /proc/meminfo. It is in `memory.max`
(cgroup v2) or `memory.limit_in_bytes` (v1); a parent group's limit applies to its children. The result is None
if nothing can be read (not Linux).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 represents "no limit" by a number near 2**63."""


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the minimum of the machine's memory and the limits of this process's control groups."""
    found = [size for size in (*_group_limits(root), _machine(root)) if size is not None]
    return min(found, default=None)


def _machine(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemTotal" and rest.split()[:1] and rest.split()[0].isdigit():
            return int(rest.split()[0]) * 1024
    return None


def _group_limits(root: Path) -> Iterator[int | None]:
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.strip().lstrip("/")
        # In a container the path may be the host's: then only the root of the mount exists.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            yield _limit(folder / name)


def _limit(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
