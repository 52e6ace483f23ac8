"""A machine's /proc and /sys: `tests/captures/host`, copied to a writable folder."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuscope.base.settings import Settings

CAPTURE = Path(__file__).parents[1] / "captures" / "host"
MOUNTED = ("run", "scratch", "home", "mnt/with space\tand\\slash", 'quoted"mount', "broken")  # and not: gone
UDEV_OF_SDA = """\
S:disk/by-id/ata-EXAMPLE_DISK_0001
I:4123445
E:ID_MODEL=EXAMPLE_DISK
E:ID_REVISION=EX01
E:ID_SERIAL=EXAMPLE_DISK_0001
E:ID_SERIAL_SHORT=0001
E:ID_WWN=0x5000c500a1b2c3d4
E:ID_PATH=pci-0000:00:17.0-ata-1
G:systemd
"""


@dataclass(frozen=True)
class HostTree:
    folder: Path

    @property
    def proc(self) -> Path:
        return self.folder / "proc"

    @property
    def sys(self) -> Path:
        return self.folder / "sys"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def settings(self) -> Settings:
        return Settings(path_procfs=str(self.proc), path_sysfs=str(self.sys), path_rootfs=str(self.root))


def copy_host_tree(folder: Path) -> HostTree:
    tree = HostTree(folder)
    shutil.copytree(CAPTURE / "proc", tree.proc)
    shutil.copytree(CAPTURE / "sys", tree.sys)
    for name in MOUNTED:
        (tree.root / name).mkdir(parents=True)
    udev = tree.root / "run/udev/data"
    udev.mkdir(parents=True)
    (udev / "b8:0").write_text(UDEV_OF_SDA)
    return tree


SIZES = os.statvfs_result((4096, 1024, 1_000_000, 600_000, 500_000, 65_536, 65_000, 65_000, 1024, 255))


def fixed_statvfs(path: str) -> os.statvfs_result:
    """The same sizes on every machine; a missing path raises an error."""
    Path(path).stat()
    return SIZES


class HangingStat:
    """A statvfs that blocks on one path, or on paths with this prefix, until it is released."""

    def __init__(self, hang_on: str, answer: Callable[[str], os.statvfs_result]) -> None:
        self._hang_on = hang_on
        self._answer = answer
        self.calls: list[str] = []
        self.release = threading.Event()

    def __call__(self, path: str) -> os.statvfs_result:
        self.calls.append(path)
        if path.startswith(self._hang_on):
            self.release.wait(30)
        return self._answer(path)
