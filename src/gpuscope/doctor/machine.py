"""The rest of the machine: other sources, the kernel log, the clock."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator

from gpuscope.doctor import Diagnosis, Scene, Verdict

_TIME_ERROR = 5  # adjtimex: the clock is not synchronised
_TIMEX_BYTES = 256


def other_sources(scene: Scene) -> Iterator[Diagnosis]:
    for status in scene.snapshot.sources:
        if status.name not in ("nvml", "kernel-log"):  # these have checks of their own
            verdict = Verdict.GOOD if status.up else Verdict.NOTE
            yield Diagnosis(verdict, f"source {status.name}: {status.why}")
    command = scene.settings.dcgmi_command.split()[0]
    if not shutil.which(command):
        fix = "only needed for profiling numbers before Hopper: install datacenter-gpu-manager"
        yield Diagnosis(Verdict.NOTE, f"{command} is not installed", fix)


def the_kernel_log(scene: Scene) -> Iterator[Diagnosis]:
    path = scene.root / "dev/kmsg"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        fix = "run as root, or grant CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG), and map /dev/kmsg"
        yield Diagnosis(Verdict.NOTE, f"XIDs cannot be read from {path}: {error.strerror}", fix)
        return
    os.close(handle)
    yield Diagnosis(Verdict.GOOD, f"XIDs are read from {path}")


def the_clock(scene: Scene) -> Iterator[Diagnosis]:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        fix = "sudo timedatectl set-ntp true"
        yield Diagnosis(
            Verdict.NOTE, "the clock is not synchronised: history of several nodes will not line up", fix
        )
    elif state >= 0:
        yield Diagnosis(Verdict.GOOD, "the clock is synchronised")


CHECKS = (other_sources, the_kernel_log, the_clock)
