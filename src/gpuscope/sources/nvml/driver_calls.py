"""The one place where driver calls are made. Everything that is asked of a GPU goes through its gate.

In goes a call, out comes its answer or ABSENT. A refusal is remembered, so that what a card cannot give is not
asked again every second; `forget` starts over. A call that does not return is stuck (`lane.py`): it is absent
and not asked again until it has returned. A lost GPU and a dead session are raised: the first concerns one GPU,
the second all of them. Anything else is counted by call, and the rest goes on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

from gpuscope.errors import SourceError
from gpuscope.readings import ABSENT
from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.lane import Lane
from gpuscope.sources.nvml.library import Function, Library

Ask = tuple[str, tuple[Any, ...]]
"""A call of the binding and its arguments after the handle: `("nvmlDeviceGetClockInfo", (0,))`."""


class GpuLostError(Exception):
    """The driver says that this GPU is gone or needs a reset."""


def address(handle: Any) -> int:
    """What two handles of one GPU have in common."""
    # Not by a cast: its result refers to itself, and stays until the garbage collector comes by.
    return ctypes.c_void_p.from_buffer(handle).value or 0


class Gate:
    """The way to one GPU or MIG instance, or with no handle to the driver itself.

    `who` names it in the log. Calls are made by the lane's thread, in one of its jobs.
    """

    def __init__(self, library: Library, lane: Lane, handle: Any = None, who: str = "") -> None:
        self.library = library
        self.lane = lane
        self.handle = handle
        self.who = who
        self._first = () if handle is None else (handle,)
        self._address = 0 if handle is None else address(handle)
        self._refused: set[Hashable] = set()
        self._skipped = lane.skipped  # empty but for stuck calls

    def call(
        self, key: Hashable, name: str, function: Function, *arguments: Any, about: tuple[Any, ...] = ()
    ) -> Any:
        """Makes a driver call, noting who is in it since when; raises what the binding raises."""
        thread = self.lane.thread
        if thread is None:
            raise RuntimeError(f"{name} outside a job of {self.lane.name}")
        thread.enter((self._address, key), self.who, name, about, self.lane.now())
        try:
            return function(*arguments)
        finally:
            thread.leave()

    def answer(self, ask: Ask) -> Any:
        """What the driver answers to a call of the binding, or ABSENT."""
        if ask in self._refused or (self._skipped and self.is_stuck(ask)):
            return ABSENT
        name, arguments = ask
        try:
            function = self.library.function(name)
            return self.call(ask, name, function, *self._first, *arguments, about=arguments)
        except self.library.nvml.NVMLError as error:
            self.judge(ask, name, error.value)
        except UnicodeDecodeError:
            self.lane.failures[name] += 1
        return ABSENT

    def run(self, name: str, *arguments: Any, about: Hashable = None, function: Function | None = None) -> bool:
        """Runs a C function that fills buffers of ours; says whether it filled them.

        `about` tells apart what is refused or stuck on its own (a MIG instance); `function` stands in for C's.
        """
        key = name if about is None else (name, about)
        if key in self._refused or self.is_stuck(key):
            return False
        try:
            what = () if about is None else (about,)
            self.call(key, name, function or self.library.raw(name), *arguments, about=what)
        except self.library.nvml.NVMLError as error:
            self.judge(key, name, error.value)
            return False
        return True

    def judge(self, key: Hashable, name: str, code: int) -> None:
        """Draws the consequence of a return code that is not success."""
        if code in codes.REFUSED:
            self._refused.add(key)
        elif code in codes.LOST:
            raise GpuLostError
        elif code in codes.DRIVER_GONE and (trouble := self._trouble()) is not None:
            raise SourceError(trouble)
        elif code not in codes.NOTHING_NOW:
            self.lane.failures[name] += 1

    def _trouble(self) -> str | None:
        """Why nothing can be read any more, or None if the driver still answers."""
        for name in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"):
            if self.is_stuck(name):
                continue
            try:
                self.call(name, name, self.library.function(name))
            except self.library.nvml.NVMLError as error:
                return codes.explain(error.value) if error.value in codes.DRIVER_GONE else None
        return None

    def failed(self, name: str) -> int:
        """How often a call failed in this reading."""
        return self.lane.failures[name]

    def refuses(self, key: Hashable) -> bool:
        """Whether this gives nothing at present: refused or stuck."""
        return key in self._refused or self.is_stuck(key)

    def is_stuck(self, key: Hashable) -> bool:
        return bool(self._skipped) and self.lane.skips((self._address, key))

    def forget_one(self, key: Hashable) -> None:
        self._refused.discard(key)

    def forget(self) -> None:
        """Asks everything again: after a new driver, another MIG mode, or some minutes."""
        self._refused.clear()
