"""The driver library: loads and initialises it through `nvidia-ml-py`, unloads it on close.

A driver update replaces the library's file, but a process keeps the copy it has loaded. Closing therefore
unloads the library, so that the next open loads the new file, and resets the handle and the function pointers
that `nvidia-ml-py` caches in module globals.
"""

from __future__ import annotations

import _ctypes
import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final

from gpuscope.agent.job_runner import abandoned_threads
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.nvidia.nvml.tiers import NO_REQUESTS, TierPlan

# NVML's return codes, grouped by how the source handles them, and error messages for the fatal ones.

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


Function = Callable[..., Any]

# Calls for which the binding expects the caller to pass a structure: its type and its version number.
_FILLED = {
    "nvmlDeviceGetSramEccErrorStatus": ("c_nvmlEccSramErrorStatus_v1_t", "nvmlEccSramErrorStatus_v1"),
    "nvmlDeviceGetPciInfo_v2": ("nvmlPciInfo_v2_t", None),
    "nvmlDeviceGetPciInfoExt": ("nvmlPciInfoExt_v1_t", "nvmlPciInfoExt_v1"),
    "nvmlDeviceGetGpuFabricInfoV": ("c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2"),
    "nvmlDeviceGetGpuFabricInfo": ("c_nvmlGpuFabricInfo_t", None),
    "nvmlDeviceGetRemappedRows_v2": ("c_nvmlRemappedRowsInfo_v2_t", None),
    "nvmlDeviceGetPlatformInfo": ("c_nvmlPlatformInfo_v2_t", "nvmlPlatformInfo_v2"),
}


class _Unclosed:
    """Sessions of this process that could not be closed. The driver counts them, so the next close ends all."""

    sessions = 0


class Library:
    """One initialised session. `nvml` is the binding's module; its exceptions are `nvml.NVMLError`.

    `tier_plan` defines how often each number is read.
    """

    _unclosed = _Unclosed()

    def __init__(self, tier_plan: TierPlan = NO_REQUESTS) -> None:
        self.tier_plan = tier_plan
        self.driver_version: Maybe[str] = ABSENT
        """Set by the session: some field ids depend on it."""
        try:
            import pynvml
        except ImportError:
            raise SourceMissing("the Python package nvidia-ml-py is not installed") from None
        self.nvml: Any = pynvml
        self.functions: dict[str, Function] = {
            "nvmlDeviceGetFanSpeedRPM": self._fan_speed_rpm,
            **{name: partial(self._fill, name) for name in _FILLED},
        }
        try:
            self._initialise()
        except pynvml.NVMLError as error:
            self._unload()
            missing = error.value == LIBRARY_NOT_FOUND
            raise (SourceMissing if missing else SourceError)(explain(error.value)) from None

    def _initialise(self) -> None:
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
            # The binding calls nvmlInitWithFlags, which the oldest drivers do not have.
            self.raw("nvmlInit_v2")()

    def function(self, name: str) -> Function:
        """The binding's function; if the binding is too old, a function that raises "function not found"."""
        found = self.functions.get(name)
        if found is None:
            found = getattr(self.nvml, name, None) or self._not_found
            self.functions[name] = found
        return found

    def raw(self, name: str) -> Function:
        """The library's C function, raising like the binding: for calls with reused buffers."""
        found = self.functions.get("raw " + name)
        if found is None:
            pointer = getattr(self.nvml.nvmlLib, name, None)
            found = self._not_found if pointer is None else _raising(pointer, self.nvml.NVMLError)
            self.functions["raw " + name] = found
        return found

    def _fan_speed_rpm(self, handle: Any, fan: int) -> int:
        # The binding reads the first fan only.
        info = self.nvml.c_nvmlFanSpeedInfo_t()
        info.version, info.fan = self.nvml.nvmlFanSpeedInfo_v1, fan
        self.raw("nvmlDeviceGetFanSpeedRPM")(handle, ctypes.byref(info))
        return int(info.speed)

    def _fill(self, name: str, handle: Any) -> Any:
        layout, version = (part and getattr(self.nvml, part, None) for part in _FILLED[name])
        if layout is None:  # the binding is too old
            self._not_found()
        filled = plain(layout)()
        if version is not None:
            filled.version = version
        self.raw(name)(handle, ctypes.byref(filled))
        return filled

    def _not_found(self, *arguments: object) -> Any:
        raise self.nvml.NVMLError(FUNCTION_NOT_FOUND)

    def close(self) -> None:
        """Ends the session. While a call is stuck, the library stays loaded and the session open."""
        if abandoned_threads():
            self._unclosed.sessions += 1
            return
        for _ in range(1 + self._unclosed.sessions):
            with suppress(self.nvml.NVMLError):  # the driver may be unloaded already
                self.nvml.nvmlShutdown()
        self._unclosed.sessions = 0
        self.functions.clear()
        self._unload()

    def _unload(self) -> None:
        if abandoned_threads():
            return  # an abandoned thread returns into the library's code
        loaded, self.nvml.nvmlLib = self.nvml.nvmlLib, None
        self.nvml._nvmlGetFunctionPointer_cache.clear()
        if loaded is not None:
            _ctypes.dlclose(loaded._handle)
            # Every ctypes function is a reference cycle, which only a full collection frees. Python delays that
            # until a quarter of all objects are new, so hours of reopened sessions would accumulate.
            del loaded
            gc.collect()


@cache
def plain(layout: Any) -> Any:
    """The binding's structure without its conversions, which take as long as a driver call per access."""
    if issubclass(layout, ctypes.Array):
        return plain(layout._type_) * layout._length_
    if not issubclass(layout, ctypes.Structure):
        return layout
    members = [(name, plain(kind)) for name, kind in layout._fields_]
    return type(layout.__name__, (ctypes.Structure,), {"_fields_": members})


def _raising(pointer: Function, error_type: type[Exception]) -> Function:
    def call(*arguments: Any) -> None:
        code = pointer(*arguments)
        if code:
            raise error_type(code)

    return call
