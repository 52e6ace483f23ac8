"""The driver library while it is open: loaded by `nvidia-ml-py`, initialised, and let go of on close.

A driver update replaces the library's file, but a process keeps the copy it has loaded; so closing also
unloads it, and the next open takes the file that is there then. `nvidia-ml-py` caches the handle and every
function pointer in module globals, which are reset here for the same reason.
"""

from __future__ import annotations

import _ctypes
import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

from gpuscope.errors import SourceError, SourceMissing
from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.lane import threads_left_behind
from gpuscope.sources.nvml.tiers import NO_REQUESTS, TierPlan

Function = Callable[..., Any]

# Calls that fill a structure, which the binding leaves to its caller: the structure, and its version number.
_FILLED = {
    "nvmlDeviceGetSramEccErrorStatus": ("c_nvmlEccSramErrorStatus_v1_t", "nvmlEccSramErrorStatus_v1"),
    "nvmlDeviceGetPciInfoExt": ("nvmlPciInfoExt_v1_t", "nvmlPciInfoExt_v1"),
    "nvmlDeviceGetGpuFabricInfoV": ("c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2"),
    "nvmlDeviceGetGpuFabricInfo": ("c_nvmlGpuFabricInfo_t", None),
    "nvmlDeviceGetRemappedRows_v2": ("c_nvmlRemappedRowsInfo_v2_t", None),
    "nvmlDeviceGetPlatformInfo": ("c_nvmlPlatformInfo_v2_t", "nvmlPlatformInfo_v2"),
}


class _Left:
    """Sessions of this process that could not be ended. The driver counts them: the next close ends all."""

    sessions = 0


class Library:
    """One initialised session. `nvml` is the binding's module; its exceptions are `nvml.NVMLError`.

    `tier_plan` says how often the readers of this session read each number.
    """

    _left = _Left()

    def __init__(self, tier_plan: TierPlan = NO_REQUESTS) -> None:
        self.tier_plan = tier_plan
        try:
            import pynvml
        except ImportError:
            raise SourceMissing("the Python package nvidia-ml-py is not installed") from None
        self.nvml: Any = pynvml
        self._functions: dict[str, Function] = {
            "nvmlDeviceGetFanSpeedRPM": self._fan_speed_rpm,
            **{name: partial(self._fill, name) for name in _FILLED},
        }
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._unload()
            missing = error.value == codes.LIBRARY_NOT_FOUND
            raise (SourceMissing if missing else SourceError)(codes.explain(error.value)) from None

    def function(self, name: str) -> Function:
        """The binding's function; one that raises "function not found" if the binding is too old for it."""
        found = self._functions.get(name)
        if found is None:
            found = getattr(self.nvml, name, None) or self._not_found
            self._functions[name] = found
        return found

    def raw(self, name: str) -> Function:
        """The library's own C function, raising like the binding: for calls with buffers that we keep."""
        found = self._functions.get("raw " + name)
        if found is None:
            pointer = getattr(self.nvml.nvmlLib, name, None)
            found = self._not_found if pointer is None else _raising(pointer, self.nvml.NVMLError)
            self._functions["raw " + name] = found
        return found

    def _fan_speed_rpm(self, handle: Any, fan: int) -> int:
        # The binding asks for the first fan only.
        info = self.nvml.c_nvmlFanSpeedInfo_t()
        info.version, info.fan = self.nvml.nvmlFanSpeedInfo_v1, fan
        self.raw("nvmlDeviceGetFanSpeedRPM")(handle, ctypes.byref(info))
        return int(info.speed)

    def _fill(self, name: str, handle: Any) -> Any:
        layout, version = (part and getattr(self.nvml, part, None) for part in _FILLED[name])
        if layout is None:  # the binding is too old for it
            self._not_found()
        filled = plain(layout)()
        if version is not None:
            filled.version = version
        self.raw(name)(handle, ctypes.byref(filled))
        return filled

    def _not_found(self, *arguments: object) -> Any:
        raise self.nvml.NVMLError(codes.FUNCTION_NOT_FOUND)

    def close(self) -> None:
        """Ends the session; while some thread has not returned from a call, the library stays as it is."""
        if threads_left_behind():
            self._left.sessions += 1
            return
        for _ in range(1 + self._left.sessions):
            with suppress(self.nvml.NVMLError):  # the driver may have gone first
                self.nvml.nvmlShutdown()
        self._left.sessions = 0
        self._functions.clear()
        self._unload()

    def _unload(self) -> None:
        if threads_left_behind():
            return  # the code that a thread returns to must be there
        loaded, self.nvml.nvmlLib = self.nvml.nvmlLib, None
        self.nvml._nvmlGetFunctionPointer_cache.clear()
        if loaded is not None:
            _ctypes.dlclose(loaded._handle)
            # Every function of ctypes refers to itself, and only a full collection frees it. Python puts that
            # off until a quarter of all objects are new: for hours of sessions that each leave some behind.
            del loaded
            gc.collect()


@cache
def plain(layout: Any) -> Any:
    """A structure of the binding without its conversions: with them, each access costs a driver call."""
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
