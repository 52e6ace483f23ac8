"""The one place where a driver call can fail. Everything that is asked of a GPU goes through its gate.

In goes a call, out comes its answer or ABSENT. A refusal is remembered, so that what a card cannot give is not
asked again every second; `forget` starts over. A lost GPU and a dead session are raised: the first concerns
one GPU, the second all of them. Anything else is counted by call, and the rest goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from gpuscope.errors import SourceError
from gpuscope.readings import ABSENT
from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.library import Function, Library

Ask = tuple[str, tuple[Any, ...]]
"""A call of the binding and its arguments after the handle: `("nvmlDeviceGetClockInfo", (0,))`."""


class GpuLostError(Exception):
    """The driver says that this GPU is gone or needs a reset."""


class Gate:
    """The way to one GPU or MIG instance, or with no handle to the driver itself.

    `failures` is shared by all gates and counts by call.
    """

    def __init__(self, library: Library, handle: Any, failures: Counter[str]) -> None:
        self.library = library
        self.handle = handle
        self._first = () if handle is None else (handle,)
        self._failures = failures
        self._refused: set[Hashable] = set()

    def answer(self, ask: Ask) -> Any:
        """What the driver answers to a call of the binding, or ABSENT."""
        if ask in self._refused:
            return ABSENT
        name, arguments = ask
        try:
            return self.library.function(name)(*self._first, *arguments)
        except self.library.nvml.NVMLError as error:
            self.judge(ask, name, error.value)
        except UnicodeDecodeError:
            self._failures[name] += 1
        return ABSENT

    def run(self, name: str, *arguments: Any, about: Hashable = None, function: Function | None = None) -> bool:
        """Runs a C function that fills buffers of ours; says whether it filled them.

        `about` tells apart what is refused on its own (a MIG instance); `function` stands in for C's.
        """
        key = name if about is None else (name, about)
        if key in self._refused:
            return False
        try:
            (function or self.library.raw(name))(*arguments)
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
        elif code in codes.DRIVER_GONE and (trouble := self.library.trouble()) is not None:
            raise SourceError(trouble)
        elif code not in codes.NOTHING_NOW:
            self._failures[name] += 1

    def failed(self, name: str) -> int:
        """How often a call failed in this reading."""
        return self._failures[name]

    def refuses(self, key: Hashable) -> bool:
        return key in self._refused

    def forget_one(self, key: Hashable) -> None:
        self._refused.discard(key)

    def forget(self) -> None:
        """Asks everything again: after a new driver, another MIG mode, or some minutes."""
        self._refused.clear()
