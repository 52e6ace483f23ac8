"""The MIG instances of a GPU, found anew whenever they may have changed.

An instance's handle dies when the instance is destroyed, and the driver's GPU and compute instance ids are
sparse and used again; only the UUID with the handle says that it is still the same one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from gpuscope.readings import ABSENT, MigInstance, Uuid
from gpuscope.sources import Tier
from gpuscope.sources.nvml.events import address
from gpuscope.sources.nvml.gate import Gate, GpuLostError
from gpuscope.sources.nvml.identity import read_profile
from gpuscope.sources.nvml.part import PartReader
from gpuscope.sources.nvml.rows import PART_ROWS

_UUID: Final = ("nvmlDeviceGetUUID", ())


class Instance:
    def __init__(self, gate: Gate, uuid: Uuid, gpu_instance: int, compute_instance: int) -> None:
        self.gate = gate
        self.uuid = uuid
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self._profile = read_profile(gate)
        self._reader = PartReader(gate, PART_ROWS, {})
        self.answers = True

    def read(self, tier: Tier) -> None:
        """A handle that died answers nothing; the GPU itself may be well."""
        try:
            self._reader.read(tier)
            if tier is Tier.FAST:
                if self._reader.lacks(Tier.SLOW):
                    self._reader.read(Tier.SLOW)
                self.answers = self.gate.answer(_UUID) == self.uuid
        except GpuLostError:
            self._reader.clear()
            self.answers = False

    def forget(self) -> None:
        self._reader.forget()

    def to_reading(self, profiled: dict[str, Any]) -> MigInstance:
        return MigInstance(
            uuid=self.uuid,
            gpu_instance=self.gpu_instance,
            compute_instance=self.compute_instance,
            profile=self._profile,
            **self._reader.values(),
            **profiled,
        )


def find_instances(parent: Gate, known: list[Instance], failures: Counter[str]) -> list[Instance]:
    """The instances there are now, in the driver's order; those of `known` that are still the same are kept."""
    kept = {(instance.uuid, address(instance.gate.handle)): instance for instance in known}
    found = []
    places = parent.answer(("nvmlDeviceGetMaxMigDeviceCount", ()))
    for place in range(0 if places is ABSENT else places):
        # An empty place may answer "invalid argument": remembered as refused, it would stay empty.
        parent.forget_one(("nvmlDeviceGetMigDeviceHandleByIndex", (place,)))
        handle = parent.answer(("nvmlDeviceGetMigDeviceHandleByIndex", (place,)))
        if handle is ABSENT:
            continue
        instance = _identify(Gate(parent.library, handle, failures), kept)
        if instance is not None:
            found.append(instance)
    return found


def _identify(gate: Gate, kept: dict[tuple[Uuid, int], Instance]) -> Instance | None:
    try:
        uuid = gate.answer(_UUID)
        gpu_instance = gate.answer(("nvmlDeviceGetGpuInstanceId", ()))
        compute_instance = gate.answer(("nvmlDeviceGetComputeInstanceId", ()))
        if ABSENT in (uuid, gpu_instance, compute_instance):
            return None
        same = kept.get((uuid, address(gate.handle)))
        if same is not None and same.answers and same.gpu_instance == gpu_instance:
            return same
        return Instance(gate, Uuid(uuid), gpu_instance, compute_instance)
    except GpuLostError:
        return None  # it was destroyed while we looked at it
