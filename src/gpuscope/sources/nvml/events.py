"""XIDs as the driver reports them: an event set that every GPU is registered with, emptied at each reading."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from gpuscope.readings import Uuid, XidEvent
from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.library import Library

MOST_PER_READING: Final = 1000  # a GPU in agony can report faster than we read


def address(handle: Any) -> int:
    """What two handles of one GPU have in common."""
    # Not by a cast: its result refers to itself, and stays until the garbage collector comes by.
    return ctypes.c_void_p.from_buffer(handle).value or 0


class XidWatch:
    def __init__(self, library: Library, failures: Counter[str], now: Callable[[], float] = time.time) -> None:
        self._library = library
        self._failures = failures
        self._now = now
        self._set: Any = None
        self._uuids: Mapping[int, Uuid] = {}

    def watch(self, gpus: Iterable[tuple[Any, Uuid]]) -> bool:
        """Registers these GPUs, and only these: a lost one would make every wait fail."""
        nvml = self._library.nvml
        self.close()
        uuids = {}
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._count("nvmlEventSetCreate", error.value)
            return error.value in codes.REFUSED
        for handle, uuid in gpus:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            except nvml.NVMLError as error:
                self._count("nvmlDeviceRegisterEvents", error.value)
                continue
            uuids[address(handle)] = uuid
        self._uuids = uuids
        return True

    def poll(self) -> tuple[XidEvent, ...]:
        if self._set is None or not self._uuids:
            return ()
        nvml, events = self._library.nvml, []
        for _ in range(MOST_PER_READING):
            try:
                data = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError as error:
                if error.value != codes.TIMEOUT:
                    self._count("nvmlEventSetWait", error.value)
                break
            uuid = self._uuids.get(address(data.device))
            if data.eventType == nvml.nvmlEventTypeXidCriticalError and uuid is not None:
                events.append(XidEvent(xid=int(data.eventData), at=self._now(), channel="nvml", gpu_uuid=uuid))
        return tuple(events)

    def _count(self, name: str, code: int) -> None:
        # A lost GPU and a dead session show in the reading itself.
        if code not in codes.REFUSED | codes.LOST | codes.DRIVER_GONE:
            self._failures[name] += 1

    def close(self) -> None:
        if self._set is not None:
            with suppress(self._library.nvml.NVMLError):  # the session may have ended before
                self._library.nvml.nvmlEventSetFree(self._set)
        self._set, self._uuids = None, {}
