"""Makes all driver calls. Input: a call; output: its result or ABSENT.

A refused call is not repeated until `retry_refused`. A call that does not return is stuck (`job_runner.py`):
its result is ABSENT, and the call is not repeated until it has returned. A lost GPU raises GpuLostError and an
ended session raises SourceError. Every other failure is counted by call name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

from gpuscope.agent.job_runner import JobRunner
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.nvml import library
from gpuscope.vendors.nvidia.nvml.library import Function, Library

DriverCall = tuple[str, tuple[Any, ...]]
"""A call of the binding and its arguments after the handle: `("nvmlDeviceGetClockInfo", (0,))`."""


class GpuLostError(Exception):
    """The driver reports that the GPU is gone or needs a reset."""


def address(handle: Any) -> int:
    """The address in a handle; two handles of one GPU have the same."""
    # Not ctypes.cast(): its result contains a reference cycle and stays until the garbage collector runs.
    return ctypes.c_void_p.from_buffer(handle).value or 0


class DriverCalls:
    """The driver calls of one GPU or MIG instance; without a handle, calls that concern the whole driver.

    `device_name` appears in the log. Only jobs of the runner make calls.
    """

    def __init__(self, library: Library, runner: JobRunner, handle: Any = None, device_name: str = "") -> None:
        self.library = library
        self.runner = runner
        self.handle = handle
        self.device_name = device_name
        self._first = () if handle is None else (handle,)
        self._address = 0 if handle is None else address(handle)
        self._refused: set[Hashable] = set()
        self._skipped = runner.skipped  # empty unless calls are stuck

    def call(
        self, key: Hashable, name: str, function: Function, *arguments: Any, qualifier: tuple[Any, ...] = ()
    ) -> Any:
        """Makes a driver call and records it as pending; raises the binding's exceptions."""
        thread = self.runner.thread
        if thread is None:
            raise RuntimeError(f"{name} outside a job of {self.runner.name}")
        thread.enter((self._address, key), self.device_name, name, qualifier, self.runner.now())
        try:
            return function(*arguments)
        finally:
            thread.leave()

    def result(self, call: DriverCall) -> Any:
        """The result of a call of the binding, or ABSENT."""
        if call in self._refused or (self._skipped and self.is_stuck(call)):
            return ABSENT
        name, arguments = call
        try:
            function = self.library.function(name)
            return self.call(call, name, function, *self._first, *arguments, qualifier=arguments)
        except self.library.nvml.NVMLError as error:
            self.handle_error_code(call, name, error.value)
        except UnicodeDecodeError:
            self.runner.failures[name] += 1
        return ABSENT

    def run(
        self, name: str, *arguments: Any, qualifier: Hashable = None, function: Function | None = None
    ) -> bool:
        """Calls a C function that fills buffers of the caller; returns whether it succeeded.

        `qualifier` separates calls of one name that can be refused or stuck independently (one per MIG
        instance). `function` replaces the C function.
        """
        key = name if qualifier is None else (name, qualifier)
        if key in self._refused or self.is_stuck(key):
            return False
        try:
            qualifiers = () if qualifier is None else (qualifier,)
            self.call(key, name, function or self.library.raw(name), *arguments, qualifier=qualifiers)
        except self.library.nvml.NVMLError as error:
            self.handle_error_code(key, name, error.value)
            return False
        return True

    def handle_error_code(self, key: Hashable, name: str, code: int) -> None:
        """Handles a return code other than success."""
        if code in library.REFUSED:
            self._refused.add(key)
        elif code in library.LOST:
            raise GpuLostError
        elif code in library.DRIVER_GONE and (reason := self._driver_failure()) is not None:
            raise SourceError(reason)
        elif code not in library.NO_VALUE_NOW:
            self.runner.failures[name] += 1

    def _driver_failure(self) -> str | None:
        """Why the driver does not answer, or None if it still answers."""
        for name in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"):
            if self.is_stuck(name):
                continue
            try:
                self.call(name, name, self.library.function(name))
            except self.library.nvml.NVMLError as error:
                return library.explain(error.value) if error.value in library.DRIVER_GONE else None
        return None

    def failure_count(self, name: str) -> int:
        """How many times a call failed in this reading."""
        return self.runner.failures[name]

    def is_unavailable(self, key: Hashable) -> bool:
        """Whether the call is refused or stuck."""
        return key in self._refused or self.is_stuck(key)

    def is_refused(self, key: Hashable) -> bool:
        """Whether the driver or the GPU does not have the call."""
        return key in self._refused

    def is_stuck(self, key: Hashable) -> bool:
        return bool(self._skipped) and self.runner.is_skipped((self._address, key))

    def retry(self, key: Hashable) -> None:
        self._refused.discard(key)

    def retry_refused(self) -> None:
        """Allows refused calls again: after a driver change, a MIG mode change, or some minutes."""
        self._refused.clear()
