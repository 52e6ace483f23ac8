"""NVML's return codes, grouped by how the source handles them, and error messages for the fatal ones."""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
LIB_RM_VERSION_MISMATCH: Final = 18
NO_DATA: Final = 21
ARGUMENT_VERSION_MISMATCH: Final = 25
DEPRECATED: Final = 26
NOT_READY: Final = 27
GPU_NOT_FOUND: Final = 28

REFUSED: Final = frozenset(
    {
        INVALID_ARGUMENT,
        NOT_SUPPORTED,
        NO_PERMISSION,
        FUNCTION_NOT_FOUND,
        ARGUMENT_VERSION_MISMATCH,
        DEPRECATED,
    }
)
"""The GPU, driver or user cannot get this number: do not make the call every second."""

NO_VALUE_NOW: Final = frozenset({NOT_FOUND, NO_DATA, NOT_READY})
"""The number does not exist at the moment (a process that ended, an empty sample buffer). Not a failure."""

LOST: Final = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
"""This GPU does not answer any more; other GPUs are not affected."""

DRIVER_GONE: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH})
"""The session has ended for every GPU: close it and open a new one later."""

_SENTENCES: Final = {
    UNINITIALIZED: ("the NVIDIA driver was unloaded or reloaded; reading resumes when it answers again"),
    NO_PERMISSION: (
        "no permission to use the NVIDIA driver: run as a user with read and write access to /dev/nvidiactl;"
        " in a container, map the device nodes"
    ),
    DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded: run `modprobe nvidia`; if that fails, `dmesg` shows the reason"
    ),
    LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found: install the NVIDIA driver, or start the container with"
        " `--gpus all` (NVIDIA_DRIVER_CAPABILITIES=utility)"
    ),
    LIB_RM_VERSION_MISMATCH: (
        "the driver library and the loaded kernel module have different versions (usual after a driver update):"
        " reboot, or unload and reload the nvidia kernel modules"
    ),
}


def explain(code: int) -> str:
    return _SENTENCES.get(code, f"NVML does not start: return code {code}; run `nvidia-smi` for details")
