"""Checks of NVIDIA's driver and its GPUs: kernel module, library, device files, MIG, profiling, DCGM."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
from collections.abc import Iterator

from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.dcgm.plan import DcgmSettings
from gpuscope.vendors.nvidia.nvidia_values import own
from gpuscope.vendors.nvidia.vendor import DRIVER_LIBRARY

_IN_A_POD = (
    "in the pod's spec: runtimeClassName: nvidia, and env NVIDIA_VISIBLE_DEVICES=all; "
    "without NVIDIA's runtime mount the library and /dev/nvidia* of the node (hostPath)"
)
_IN_A_CONTAINER = (
    "docker run --gpus all; in a compose project: COMPOSE_FILE=compose.yaml:compose.nvidia.yaml in .env; "
    "without NVIDIA's toolkit: compose.devices.yaml, or mount the library and /dev/nvidia*"
)


def kernel_module(context: DoctorContext) -> Iterator[CheckResult]:
    try:
        text = (context.root / "proc/driver/nvidia/version").read_text("utf-8", "replace")
    except OSError:
        if re.search(r"^nouveau ", _loaded_modules(context), re.MULTILINE):
            fix = "blacklist nouveau, install NVIDIA's driver, reboot"
            yield CheckResult(_if_gpus(context), "the nouveau driver is loaded instead of NVIDIA's", fix)
        else:
            fix = "sudo modprobe nvidia   (or install the driver: sudo apt install nvidia-driver)"
            yield CheckResult(_if_gpus(context), "the NVIDIA kernel module is not loaded", fix)
        return
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", text)
    yield CheckResult(Verdict.GOOD, f"NVIDIA kernel module {version[1] if version else 'of unknown version'}")


def _loaded_modules(context: DoctorContext) -> str:
    try:
        return (context.root / "proc/modules").read_text("utf-8", "replace")
    except OSError:
        return ""  # a kernel without modules, or a container that hides them


def _if_gpus(context: DoctorContext) -> Verdict:
    """A missing driver is not a problem on a machine without GPUs."""
    return Verdict.NOTE if context.snapshot.expected_gpus == 0 else Verdict.BAD


def driver_library(context: DoctorContext) -> Iterator[CheckResult]:
    status = next((s for s in context.snapshot.sources if s.name == "nvml"), None)
    if status is not None and status.up:
        yield CheckResult(Verdict.GOOD, "NVML answers")
    elif not _can_load(DRIVER_LIBRARY):
        fix = _mount_line(context) or "sudo apt install libnvidia-ml1"
        yield CheckResult(_if_gpus(context), "libnvidia-ml.so.1 was not found", fix)
    elif status is not None:
        yield CheckResult(Verdict.BAD, f"NVML does not answer: {status.why}")


def _mount_line(context: DoctorContext) -> str:
    """The line of the manifest that brings the driver into a container; empty outside of one."""
    if "KUBERNETES_SERVICE_HOST" in context.environment:
        return _IN_A_POD
    marks = (context.root / ".dockerenv", context.root / "run/.containerenv")
    return _IN_A_CONTAINER if any(mark.exists() for mark in marks) else ""


def _can_load(name: str) -> bool:
    """Not find_library: ldconfig's list does not have a library that is mounted into a container."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def device_files(context: DoctorContext) -> Iterator[CheckResult]:
    devices = sorted((context.root / "dev").glob("nvidia[0-9]*"))
    if not devices:
        fix = _mount_line(context) or "sudo nvidia-modprobe -c0 -u"
        yield CheckResult(_if_gpus(context), "/dev/nvidia0 does not exist", fix)
        return
    control = context.root / "dev/nvidiactl"
    closed = [str(path) for path in (control, *devices) if not _may_open(path)]
    if closed:
        fix = f"add this user to the group that owns them: {_group_hint(closed[0])}"
        yield CheckResult(Verdict.BAD, f"no permission to open {', '.join(closed)}", fix)
    else:
        yield CheckResult(Verdict.GOOD, f"{len(devices)} GPU device files, all accessible to this user")


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


def mig(context: DoctorContext) -> Iterator[CheckResult]:
    for device in context.snapshot.devices:
        mine = own(device)
        if not device.is_split:
            continue
        if device.instances:
            yield CheckResult(
                Verdict.GOOD, f"GPU {device.index}: MIG with {len(device.instances)} instances visible"
            )
        else:
            fix = "create instances (nvidia-smi mig -cgi … -C), or allow /proc/driver/nvidia/capabilities"
            yield CheckResult(
                Verdict.BAD, f"GPU {device.index}: MIG is enabled but no instance is visible", fix
            )
        if mine.mig_pending is not ABSENT and mine.mig_pending != mine.mig_enabled:
            fix = f"nvidia-smi --gpu-reset -i {device.index}"
            yield CheckResult(Verdict.NOTE, f"GPU {device.index}: MIG mode changes at the next reset", fix)


def instance_access(context: DoctorContext) -> Iterator[CheckResult]:
    blind = [d.index for d in context.snapshot.devices if d.is_split and not d.instances and not d.lost]
    kubelet_folder = (context.root / context.settings.kubelet_socket.lstrip("/")).parent
    if blind and ("KUBERNETES_SERVICE_HOST" in context.environment or kubelet_folder.is_dir()):
        fix = (
            "env: NVIDIA_MIG_MONITOR_DEVICES=all and NVIDIA_VISIBLE_DEVICES=all, with runtimeClassName: nvidia "
            "and securityContext: capabilities: {add: [SYS_ADMIN]}"
        )
        gpus = ", ".join(map(str, blind))
        yield CheckResult(
            Verdict.BAD, f"MIG is enabled on GPU {gpus}, but this pod cannot see its instances", fix
        )


def profiling(context: DoctorContext) -> Iterator[CheckResult]:
    devices = [device for device in context.snapshot.devices if not device.lost]
    without = [str(device.index) for device in devices if "sm" not in device.engine_active_ratio]
    if devices and not without:
        yield CheckResult(Verdict.GOOD, "profiling numbers (SM, tensor, DRAM activity) on every GPU")
    elif without:
        fix = "install DCGM and start nv-hostengine as root; GeForce GPUs have no profiling numbers"
        what = f"no profiling numbers on GPU {', '.join(without)}: GPUs before Hopper need DCGM for them"
        yield CheckResult(Verdict.NOTE, what, fix)


def dcgm_command(context: DoctorContext) -> Iterator[CheckResult]:
    command = context.settings.view(DcgmSettings).dcgmi_command.split()[0]
    if not shutil.which(command):
        fix = "install datacenter-gpu-manager; only needed for profiling numbers before Hopper"
        yield CheckResult(Verdict.NOTE, f"{command} is not installed", fix)


CHECKS = (kernel_module, driver_library, device_files, mig, instance_access, profiling, dcgm_command)
REAL_GPU_CHECKS = (kernel_module, driver_library, device_files, dcgm_command)
