"""The kernel's estimate of its clock error, from adjtimex(2), as node_exporter reads it.

Reading needs no privilege. The offset is the kernel's own and is 0 where nothing disciplines the clock; then
`sync_status` is 0. Containers see the host's clock.
"""

from __future__ import annotations

import ctypes
import os

STA_NANO = 0x2000
TIME_ERROR = 5
"""The clock is not synchronised."""


class _TimeValue(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("fraction", ctypes.c_long))


class Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", _TimeValue),
        ("tick", ctypes.c_long),
        ("pps", ctypes.c_long * 8),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


def read_clock_state() -> dict[str, float]:
    """By suffix of node_timex_*. Raises OSError; FileNotFoundError where the system has no adjtimex."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        raise FileNotFoundError("adjtimex") from None
    state = Timex()  # modes is 0: nothing is changed
    result = adjtimex(ctypes.byref(state))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return to_clock_state(state, result)


def to_clock_state(state: Timex, result: int) -> dict[str, float]:
    divisor = 1e9 if state.status & STA_NANO else 1e6
    return {
        "estimated_error_seconds": state.esterror / 1e6,
        "maxerror_seconds": state.maxerror / 1e6,
        "offset_seconds": state.offset / divisor,
        "sync_status": 0.0 if result == TIME_ERROR else 1.0,
    }
