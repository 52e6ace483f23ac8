"""Checks of the other sources, the kernel log and the clock."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.vendor import vendors

_TIME_ERROR = 5  # adjtimex: the clock is not synchronised
_TIMEX_BYTES = 256


def other_sources(context: DoctorContext) -> Iterator[CheckResult]:
    with_own_checks = {"kernel-log", *(vendor.driver_source for vendor in vendors().values())}
    for status in context.snapshot.sources:
        if status.name not in with_own_checks:
            verdict = Verdict.GOOD if status.up else Verdict.NOTE
            yield CheckResult(verdict, f"source {status.name}: {status.why}")


def kernel_log(context: DoctorContext) -> Iterator[CheckResult]:
    path = context.root / "dev/kmsg"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        fix = "run as root, or grant CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG), and map /dev/kmsg"
        yield CheckResult(Verdict.NOTE, f"XIDs cannot be read from {path}: {error.strerror}", fix)
        return
    os.close(handle)
    yield CheckResult(Verdict.GOOD, f"XIDs are read from {path}")


def clock_synchronisation(context: DoctorContext) -> Iterator[CheckResult]:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        fix = "sudo timedatectl set-ntp true"
        yield CheckResult(
            Verdict.NOTE, "the clock is not synchronised: times of different nodes will not match", fix
        )
    elif state >= 0:
        yield CheckResult(Verdict.GOOD, "the clock is synchronised")


CHECKS = (other_sources, kernel_log, clock_synchronisation)
REAL_GPU_CHECKS = (kernel_log,)
