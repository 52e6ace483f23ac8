"""The MIG instances of a GPU, listed again whenever they may have changed.

A handle becomes invalid when its instance is destroyed, and the driver reuses GPU and compute instance ids: two
instances are the same only if UUID and handle are equal.
"""

from __future__ import annotations

from typing import Any, Final

from gpuscope.model.readings import ABSENT, Instance, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import make_instance
from gpuscope.vendors.nvidia.nvml.call_table import GPU_OR_INSTANCE_ROWS
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCall, DriverCalls, GpuLostError, address
from gpuscope.vendors.nvidia.nvml.identity import read_profile
from gpuscope.vendors.nvidia.nvml.tier_reader import TierReader

_UUID: Final[DriverCall] = ("nvmlDeviceGetUUID", ())
_IDENTITY: Final[tuple[DriverCall, ...]] = (
    _UUID,
    ("nvmlDeviceGetGpuInstanceId", ()),
    ("nvmlDeviceGetComputeInstanceId", ()),
)


class NvmlInstance:
    def __init__(self, calls: DriverCalls, uuid: Uuid, gpu_instance: int, compute_instance: int) -> None:
        self.calls = calls
        self.uuid = uuid
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self.index = -1  # MIG device index on this GPU
        self._profile = read_profile(calls)
        self._reader = TierReader(calls, GPU_OR_INSTANCE_ROWS, {})
        self.answers = True

    def read(self, tier: Tier) -> None:
        """An invalid handle returns nothing; the GPU itself may still work."""
        try:
            self._reader.read(tier)
            if tier is Tier.FAST:
                if self._reader.has_not_read(Tier.SLOW):
                    self._reader.read(Tier.SLOW)
                self.answers = self.calls.is_stuck(_UUID) or self.calls.result(_UUID) == self.uuid
        except GpuLostError:
            self._reader.clear()
            self.answers = False

    def retry_refused(self) -> None:
        self._reader.retry_refused()

    def to_reading(self, profiled: dict[str, Any], processes_known: bool) -> Instance:
        return make_instance(
            uuid=self.uuid,
            gpu_instance=self.gpu_instance,
            compute_instance=self.compute_instance,
            profile=self._profile,
            **self._reader.values(),
            **profiled,
            processes_known=processes_known,
        )


def find_instances(parent: DriverCalls, known: list[NvmlInstance]) -> list[NvmlInstance]:
    """The current instances in the driver's order; unchanged instances of `known` are kept.

    While the call for an index is stuck, the known instance at that index is kept.
    """
    by_index = {instance.index: instance for instance in known}
    count: DriverCall = ("nvmlDeviceGetMaxMigDeviceCount", ())
    size = parent.result(count)
    if parent.is_stuck(count):
        return known
    found = []
    for index in range(0 if size is ABSENT else size):
        call: DriverCall = ("nvmlDeviceGetMigDeviceHandleByIndex", (index,))
        # For an unused index the driver may return "invalid argument"; the call must still be repeated.
        parent.retry(call)
        handle = parent.result(call)
        if handle is not ABSENT:
            calls = DriverCalls(
                parent.library, parent.runner, handle, f"{parent.device_name}, MIG device {index}"
            )
            instance = _identify(calls, index, known)
        else:
            instance = by_index.get(index) if parent.is_stuck(call) else None
        if instance is not None:
            found.append(instance)
    return found


def _identify(calls: DriverCalls, index: int, known: list[NvmlInstance]) -> NvmlInstance | None:
    same = next((each for each in known if address(each.calls.handle) == address(calls.handle)), None)
    try:
        results = [calls.result(call) for call in _IDENTITY]
        if any(calls.is_stuck(call) for call in _IDENTITY):
            return same
        if ABSENT in results:
            return None
        uuid, gpu_instance, compute_instance = results
        if same is None or not same.answers or (same.uuid, same.gpu_instance) != (uuid, gpu_instance):
            same = NvmlInstance(calls, Uuid(uuid), gpu_instance, compute_instance)
        same.index = index
        return same
    except GpuLostError:
        return None  # the instance was destroyed meanwhile
