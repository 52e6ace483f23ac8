"""The processes of ROCm: who has memory or queues on which GPU, from `/sys/class/kfd/kfd/proc`.

Output: a use for each process and GPU that it uses. KFD makes files for every GPU as soon as a process opens
it; only memory or a queue makes the process a user. PIDs are the machine's. The kernel does not know how much
compute time a process has had: it counts the compute units that it occupies at the moment of reading, and the
time of its copies (SDMA), which costs the kernel work for each queue and is read in the medium tier.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe, Pid
from gpuscope.model.source import Tier
from gpuscope.vendors.drm.card_files import read_whole

PROCESSES: Final = "class/kfd/kfd/proc"
MAX_PROCESSES: Final = 4096
MAX_CONTEXTS: Final = 64
MAX_QUEUES: Final = 256
MICROSECONDS: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdUse:
    pid: Pid
    gpu_id: int
    """Of KFD's node: a card, or a partition."""
    vram_bytes: Maybe[float] = ABSENT
    compute_units: Maybe[int] = ABSENT
    """Occupied when it was read; not all cards count them."""
    copy_seconds: Maybe[float] = ABSENT
    """Of its copy engines since it began."""


class KfdProcesses:
    """Keeps who uses what between the reads of the medium tier, so that each second only users are read."""

    def __init__(self, sysfs: str) -> None:
        self._folder = f"{sysfs}/{PROCESSES}"
        self._users: dict[int, dict[int, tuple[str, ...]]] = {}
        """PID -> gpu_id -> folders, one for each context of the process."""
        self._copies: dict[tuple[int, int], float] = {}
        self._uncounted: set[int] = set()
        """GPUs that do not count occupied compute units."""

    def read(self, due: frozenset[Tier]) -> Maybe[tuple[KfdUse, ...]]:
        """ABSENT if this kernel has no KFD, or does not show its processes."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208
        except OSError:
            return ABSENT
        is_medium = Tier.MEDIUM in due
        if is_medium:
            self._uncounted.clear()
            self._copies.clear()
        pids = sorted(int(name) for name in names if name.isascii() and name.isdigit())[:MAX_PROCESSES]
        self._users = {
            pid: self._find_gpus(pid) if is_medium or pid not in self._users else self._users[pid]
            for pid in pids
        }
        return tuple(self._uses(is_medium))

    def _uses(self, with_copies: bool) -> Iterator[KfdUse]:
        for pid, gpus in self._users.items():
            for gpu_id, folders in gpus.items():
                if with_copies:
                    copied = _total(folders, f"sdma_{gpu_id}")
                    if copied is not ABSENT:
                        self._copies[pid, gpu_id] = copied * MICROSECONDS
                memory = _total(folders, f"vram_{gpu_id}")
                yield KfdUse(
                    pid=Pid(pid),
                    gpu_id=gpu_id,
                    vram_bytes=memory if memory is ABSENT else float(memory),
                    compute_units=ABSENT if memory is ABSENT else self._occupied(folders, gpu_id),
                    copy_seconds=self._copies.get((pid, gpu_id), ABSENT),
                )

    def _occupied(self, folders: tuple[str, ...], gpu_id: int) -> Maybe[int]:
        if gpu_id in self._uncounted:
            return ABSENT
        count = _total(folders, f"stats_{gpu_id}/cu_occupancy")
        if count is ABSENT:
            self._uncounted.add(gpu_id)
        return count

    def _find_gpus(self, pid: int) -> dict[int, tuple[str, ...]]:
        gpus: dict[int, tuple[str, ...]] = {}
        for folder, names in self._contexts(pid):
            used = set(_queue_gpus(folder))
            for name in names:
                gpu = name.removeprefix("vram_")
                if gpu != name and gpu.isascii() and gpu.isdigit():
                    memory = _number(f"{folder}/{name}")
                    if int(gpu) in used or (memory is not ABSENT and memory > 0):
                        gpus[int(gpu)] = (*gpus.get(int(gpu), ()), folder)
        return gpus

    def _contexts(self, pid: int) -> Iterator[tuple[str, list[str]]]:
        """A process may have several contexts: those after the first are folders within."""
        folder = f"{self._folder}/{pid}"
        names = _names(folder)
        yield folder, names
        contexts = [name for name in names if name.startswith("context_")]
        for context in contexts[:MAX_CONTEXTS]:
            yield f"{folder}/{context}", _names(f"{folder}/{context}")


def _queue_gpus(folder: str) -> Iterator[int]:
    for queue in _names(f"{folder}/queues")[:MAX_QUEUES]:
        gpu_id = _number(f"{folder}/queues/{queue}/gpuid")
        if gpu_id is not ABSENT:
            yield gpu_id


def _total(folders: tuple[str, ...], name: str) -> Maybe[int]:
    """The sum over the contexts; ABSENT if none of them can be read."""
    numbers = [_number(f"{folder}/{name}") for folder in folders]
    known = [number for number in numbers if number is not ABSENT]
    return sum(known) if known else ABSENT


def _number(path: str) -> Maybe[int]:
    """ABSENT also for a process that has ended meanwhile."""
    try:
        number = int(read_whole(path, 64))
    except (OSError, ValueError):
        return ABSENT
    return number if number >= 0 else ABSENT


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []
