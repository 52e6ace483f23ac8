"""XIDs from the driver's events: every GPU is registered with one event set, which each reading empties."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from gpuscope.model.readings import ErrorEvent, Uuid
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA
from gpuscope.vendors.nvidia.nvml import codes
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls, address

MAX_PER_READING: Final = 1000  # a failing GPU can report XIDs faster than they are read
_CREATE: Final = "nvmlEventSetCreate"
_REGISTER: Final = "nvmlDeviceRegisterEvents"
_WAIT: Final = "nvmlEventSetWait_v2"
_FREE: Final = "nvmlEventSetFree"


class XidWatch:
    def __init__(self, calls: DriverCalls, now: Callable[[], float] = time.time) -> None:
        self._calls = calls
        self._nvml = calls.library.nvml
        self._now = now
        self._set: Any = None
        self._uuids: Mapping[int, Uuid] = {}

    def watch(self, gpus: Iterable[tuple[Any, Uuid]]) -> bool:
        """Registers these GPUs only: a lost GPU in the set would make every wait fail."""
        self.close()
        uuids = {}
        if self._calls.is_stuck(_CREATE):
            return False
        try:
            self._set = self._call(_CREATE)
        except self._nvml.NVMLError as error:
            self._count(_CREATE, error.value)
            return error.value in codes.REFUSED
        for handle, uuid in gpus:
            if self._calls.is_stuck((_REGISTER, uuid)):
                continue
            try:
                self._call(
                    _REGISTER, handle, self._nvml.nvmlEventTypeXidCriticalError, self._set, qualifier=(uuid,)
                )
            except self._nvml.NVMLError as error:
                self._count(_REGISTER, error.value)
                continue
            uuids[address(handle)] = uuid
        self._uuids = uuids
        return True

    def poll(self, into: deque[ErrorEvent]) -> None:
        """Takes all waiting events; stores each at once, because the next call may not return."""
        if self._set is None or not self._uuids or self._calls.is_stuck(_WAIT):
            return
        for _ in range(MAX_PER_READING):
            try:
                self._calls.call(_WAIT, _WAIT, self._take, self._set, self._uuids, into)
            except self._nvml.NVMLError as error:
                if error.value != codes.TIMEOUT:
                    self._count("nvmlEventSetWait", error.value)
                break

    def _take(self, event_set: Any, uuids: Mapping[int, Uuid], into: deque[ErrorEvent]) -> None:
        """Stores the event inside the call, because a stuck call may return with an event."""
        data = self._calls.library.function(_WAIT)(event_set, 0)
        uuid = uuids.get(address(data.device))
        if data.eventType == self._nvml.nvmlEventTypeXidCriticalError and uuid is not None:
            into.append(
                ErrorEvent(
                    vendor=NVIDIA,
                    code=str(int(data.eventData)),
                    at=self._now(),
                    monotonic=time.monotonic(),
                    reporter="nvml",
                    gpu_uuid=uuid,
                )
            )

    def _call(self, name: str, *arguments: Any, qualifier: tuple[Any, ...] = ()) -> Any:
        key = (name, *qualifier) if qualifier else name
        return self._calls.call(key, name, self._calls.library.function(name), *arguments, qualifier=qualifier)

    def _count(self, name: str, code: int) -> None:
        # A lost GPU and an ended session are visible in the reading itself.
        if code not in codes.REFUSED | codes.LOST | codes.DRIVER_GONE:
            self._calls.runner.failures[name] += 1

    def close(self) -> None:
        # A stuck call may still use the set, so it is not freed then.
        if self._set is not None and not self._calls.runner.has_stuck_calls:
            with suppress(self._nvml.NVMLError):  # the session may have ended already
                self._call(_FREE, self._set)
        self._set, self._uuids = None, {}
