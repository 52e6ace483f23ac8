"""Is there a driver, does its library fit the kernel module, and may we open the devices?"""

from __future__ import annotations

import ctypes.util
import os
import re
import stat
from collections.abc import Iterator

from gpuscope.doctor import Diagnosis, Scene, Verdict


def the_kernel_module(scene: Scene) -> Iterator[Diagnosis]:
    try:
        text = (scene.root / "proc/driver/nvidia/version").read_text("utf-8", "replace")
    except OSError:
        if re.search(r"^nouveau ", _loaded_modules(scene), re.MULTILINE):
            fix = "blacklist nouveau, install NVIDIA's driver, reboot"
            yield Diagnosis(_if_gpus(scene), "the nouveau driver holds the GPUs; NVIDIA's is not loaded", fix)
        else:
            fix = "sudo modprobe nvidia   (or install the driver: sudo apt install nvidia-driver)"
            yield Diagnosis(_if_gpus(scene), "the NVIDIA kernel module is not loaded", fix)
        return
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", text)
    yield Diagnosis(Verdict.GOOD, f"NVIDIA kernel module {version[1] if version else 'of unknown version'}")


def _loaded_modules(scene: Scene) -> str:
    try:
        return (scene.root / "proc/modules").read_text("utf-8", "replace")
    except OSError:
        return ""  # a kernel without modules, or a container that hides them


def _if_gpus(scene: Scene) -> Verdict:
    """A missing driver is no problem of a machine that has no GPU."""
    return Verdict.NOTE if scene.snapshot.expected_gpus == 0 else Verdict.BAD


def the_driver_library(scene: Scene) -> Iterator[Diagnosis]:
    if ctypes.util.find_library("nvidia-ml") or os.environ.get("LD_LIBRARY_PATH"):
        status = next((s for s in scene.snapshot.sources if s.name == "nvml"), None)
        if status is not None and not status.up:
            yield Diagnosis(Verdict.BAD, f"NVML does not answer: {status.why}")
        elif status is not None:
            yield Diagnosis(Verdict.GOOD, "NVML answers")
        return
    fix = (
        "install the driver's library (sudo apt install libnvidia-ml1); in a container, run it with --gpus all"
    )
    yield Diagnosis(_if_gpus(scene), "libnvidia-ml.so.1 is not found", fix)


def the_device_files(scene: Scene) -> Iterator[Diagnosis]:
    devices = sorted((scene.root / "dev").glob("nvidia[0-9]*"))
    if not devices:
        fix = "sudo nvidia-modprobe -c0 -u; in a container, run it with --gpus all"
        yield Diagnosis(_if_gpus(scene), "there is no /dev/nvidia0", fix)
        return
    control = scene.root / "dev/nvidiactl"
    closed = [str(path) for path in (control, *devices) if not _may_open(path)]
    if closed:
        fix = f"add this user to the group that owns them: {_group_hint(closed[0])}"
        yield Diagnosis(Verdict.BAD, f"no permission to open {', '.join(closed)}", fix)
    else:
        yield Diagnosis(Verdict.GOOD, f"{len(devices)} GPU device files, all open to this user")


def _may_open(path: os.PathLike[str]) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _group_hint(path: str) -> str:
    import grp

    try:
        group = grp.getgrgid(os.stat(path).st_gid).gr_name  # noqa: PTH116 - only the group is wanted
        mode = stat.filemode(os.stat(path).st_mode)  # noqa: PTH116
    except (OSError, KeyError):
        return "sudo chmod a+rw does NOT survive a reboot; use udev or NVreg_DeviceFileGID"
    return f"sudo usermod -aG {group} $USER   ({path} is {mode})"


CHECKS = (the_kernel_module, the_driver_library, the_device_files)
