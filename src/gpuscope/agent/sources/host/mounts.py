"""Mounted filesystems and their sizes, without blocking on an unreachable file server.

Input: /proc/1/mountinfo; output: sizes, or the reason why there are none. `statvfs` on an unreachable NFS mount
never returns, so it runs in a thread that is abandoned when it hangs. A mount that hangs is not queried again
before its call has returned.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpuscope.agent.sources.host.proc_files import valid_text
from gpuscope.model.readings import Filesystem, FilesystemError

MOUNTPOINTS_EXCLUDED = re.compile(
    r"/(dev|proc|run/credentials/.+|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)"
)
FSTYPES_EXCLUDED = re.compile(
    r"autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|fusectl|hugetlbfs|iso9660|mqueue|nsfs|overlay"
    r"|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs|erofs|sysfs|tracefs"
)
TIMED_OUT = "mountpoint timeout"  # node_exporter's text
CALL_TIMEOUT_SECONDS = 1.0
MAX_READ_SECONDS = 3.0  # for all mounts; the other host numbers wait for them
MAX_STUCK = 4

_OCTAL = re.compile(r"\\([0-7]{3})")

StatVfs = Callable[[str], os.statvfs_result]


@dataclass(frozen=True, slots=True)
class Mount:
    device: str
    path: str  # as this process sees it
    mountpoint: str  # as node_exporter labels it
    fstype: str
    read_only: bool
    major: str
    minor: str


def parse_mountinfo(text: str, rootfs: str = "/") -> list[Mount]:
    """The mounts to export, each (device, mountpoint, type) once: a filesystem may be mounted twice."""
    rootfs = rootfs.rstrip("/")
    mounts: dict[tuple[str, str, str], Mount] = {}
    for line in text.split("\n"):
        mount = _parse_mount(line, rootfs)
        if mount is not None:
            mounts.setdefault((mount.device, mount.mountpoint, mount.fstype), mount)
    return list(mounts.values())


def _parse_mount(line: str, rootfs: str) -> Mount | None:
    place, dash, what = line.partition(" - ")
    left, right = place.split(" "), what.split(" ")
    if not dash or len(left) < 6 or len(right) < 3:
        return None
    major, colon, minor = left[2].partition(":")
    fstype, device, super_options = right[0], right[1], right[2].split(",")
    # The label decodes only these two escapes, as in node_exporter; the path for statvfs decodes all.
    mountpoint = left[4]
    if mountpoint == rootfs or mountpoint.startswith(rootfs + "/"):
        mountpoint = mountpoint[len(rootfs) :] or "/"
    label = mountpoint.replace("\\040", " ").replace("\\011", "\t")
    if not colon or FSTYPES_EXCLUDED.fullmatch(fstype) or MOUNTPOINTS_EXCLUDED.match(label):
        return None
    read_only = "ro" in left[5].split(",") or "ro" in super_options or "emergency_ro" in super_options
    return Mount(
        device=valid_text(device),
        path=rootfs + _OCTAL.sub(lambda found: chr(int(found[1], 8)), mountpoint),
        mountpoint=valid_text(label),
        fstype=valid_text(fstype),
        read_only=read_only,
        major=major,
        minor=minor,
    )


def to_filesystems(
    mounts: Iterable[Mount], sizes: dict[str, os.statvfs_result | str]
) -> tuple[tuple[Filesystem, ...], tuple[FilesystemError, ...]]:
    found, failed = [], []
    for mount in mounts:
        size = sizes[mount.path]
        if isinstance(size, str):
            failed.append(
                FilesystemError(
                    device=mount.device,
                    mountpoint=mount.mountpoint,
                    fstype=mount.fstype,
                    error=size,
                    read_only=mount.read_only,
                )
            )
            continue
        # f_bsize, not f_frsize: node_exporter multiplies by the block size of statfs.
        unit = float(size.f_bsize)
        found.append(
            Filesystem(
                device=mount.device,
                mountpoint=mount.mountpoint,
                fstype=mount.fstype,
                size_bytes=size.f_blocks * unit,
                free_bytes=size.f_bfree * unit,
                available_bytes=size.f_bavail * unit,
                files=float(size.f_files),
                files_free=float(size.f_ffree),
                read_only=mount.read_only,
                device_number=(mount.major, mount.minor),
            )
        )
    return tuple(found), tuple(failed)


@dataclass(slots=True)
class _StatvfsThread:
    """One thread that queries the paths in order; `current` is the path of its pending call."""

    paths: Sequence[str]
    statvfs: StatVfs
    results: dict[str, os.statvfs_result | str] = field(default_factory=dict)
    current: str | None = None
    abandoned: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def walk(self) -> None:
        for path in self.paths:
            if self.abandoned:
                break
            self.current = path
            try:
                result: os.statvfs_result | str = self.statvfs(path)
            except OSError as error:
                result = _go_error_text(error)
            except ValueError:  # a path with a NUL in it; Go gets EINVAL for it
                result = "invalid argument"
            self.results[path] = result
        self.done.set()


def _go_error_text(error: OSError) -> str:
    """The error text as node_exporter writes it: Go starts it with a lower-case letter."""
    words = error.strerror or "unknown error"
    return words[:1].lower() + words[1:]


class FilesystemSizes:
    """Reads the sizes of filesystems; `TIMED_OUT` for those that do not answer."""

    def __init__(self, statvfs: StatVfs = os.statvfs, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> None:
        self._statvfs = statvfs
        self._timeout = timeout_seconds
        self.stuck_threads: list[_StatvfsThread] = []

    def read(self, paths: Iterable[str]) -> dict[str, os.statvfs_result | str]:
        self.stuck_threads = [stuck for stuck in self.stuck_threads if not stuck.done.is_set()]
        wanted = list(paths)
        results: dict[str, os.statvfs_result | str] = dict.fromkeys(wanted, TIMED_OUT)
        hanging = {stuck.current for stuck in self.stuck_threads}
        rest = [path for path in wanted if path not in hanging]
        deadline = time.monotonic() + MAX_READ_SECONDS
        while rest and len(self.stuck_threads) < MAX_STUCK and time.monotonic() < deadline:
            walk = self._walk(rest, deadline)
            results.update(walk.results.copy())
            rest = [path for path in rest if results[path] == TIMED_OUT and path != walk.current]
        return results

    def _walk(self, paths: Sequence[str], deadline: float) -> _StatvfsThread:
        """Queries the paths until one hangs."""
        walk = _StatvfsThread(paths, self._statvfs)
        threading.Thread(target=walk.walk, name="statvfs", daemon=True).start()
        at, since = walk.current, time.monotonic()
        while not walk.done.wait(self._timeout):
            # Only a single call that exceeds the timeout counts as stuck, not the sum of slow calls.
            if walk.current != at:
                at, since = walk.current, time.monotonic()
            if time.monotonic() - since >= self._timeout or time.monotonic() > deadline:
                walk.abandoned = True
                self.stuck_threads.append(walk)
                break
        return walk
