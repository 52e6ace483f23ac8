"""The MIG instances of a GPU, found anew whenever they may have changed.

An instance's handle dies when the instance is destroyed, and the driver's GPU and compute instance ids are
sparse and used again; only the UUID with the handle says that it is still the same one.
"""

from __future__ import annotations

from typing import Any, Final

from gpuscope.readings import ABSENT, MigInstance, Uuid
from gpuscope.sources import Tier
from gpuscope.sources.nvml.call_table import PART_ROWS
from gpuscope.sources.nvml.driver_calls import Ask, Gate, GpuLostError, address
from gpuscope.sources.nvml.identity import read_profile
from gpuscope.sources.nvml.part import PartReader

_UUID: Final[Ask] = ("nvmlDeviceGetUUID", ())
_IDENTITY: Final[tuple[Ask, ...]] = (
    _UUID,
    ("nvmlDeviceGetGpuInstanceId", ()),
    ("nvmlDeviceGetComputeInstanceId", ()),
)


class Instance:
    def __init__(self, gate: Gate, uuid: Uuid, gpu_instance: int, compute_instance: int) -> None:
        self.gate = gate
        self.uuid = uuid
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self.place = -1  # among the driver's places for instances of this GPU
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
                self.answers = self.gate.is_stuck(_UUID) or self.gate.answer(_UUID) == self.uuid
        except GpuLostError:
            self._reader.clear()
            self.answers = False

    def forget(self) -> None:
        self._reader.forget()

    def to_reading(self, profiled: dict[str, Any], processes_known: bool) -> MigInstance:
        return MigInstance(
            uuid=self.uuid,
            gpu_instance=self.gpu_instance,
            compute_instance=self.compute_instance,
            profile=self._profile,
            **self._reader.values(),
            **profiled,
            processes_known=processes_known,
        )


def find_instances(parent: Gate, known: list[Instance]) -> list[Instance]:
    """The instances there are now, in the driver's order; those of `known` that are still the same are kept.

    While a call that finds them is stuck, what was known of its place stays.
    """
    by_place = {instance.place: instance for instance in known}
    count: Ask = ("nvmlDeviceGetMaxMigDeviceCount", ())
    places = parent.answer(count)
    if parent.is_stuck(count):
        return known
    found = []
    for place in range(0 if places is ABSENT else places):
        ask: Ask = ("nvmlDeviceGetMigDeviceHandleByIndex", (place,))
        # An empty place may answer "invalid argument": remembered as refused, it would stay empty.
        parent.forget_one(ask)
        handle = parent.answer(ask)
        if handle is not ABSENT:
            gate = Gate(parent.library, parent.lane, handle, f"{parent.who}, MIG device {place}")
            instance = _identify(gate, place, known)
        else:
            instance = by_place.get(place) if parent.is_stuck(ask) else None
        if instance is not None:
            found.append(instance)
    return found


def _identify(gate: Gate, place: int, known: list[Instance]) -> Instance | None:
    same = next((each for each in known if address(each.gate.handle) == address(gate.handle)), None)
    try:
        answers = [gate.answer(ask) for ask in _IDENTITY]
        if any(gate.is_stuck(ask) for ask in _IDENTITY):
            return same
        if ABSENT in answers:
            return None
        uuid, gpu_instance, compute_instance = answers
        if same is None or not same.answers or (same.uuid, same.gpu_instance) != (uuid, gpu_instance):
            same = Instance(gate, Uuid(uuid), gpu_instance, compute_instance)
        same.place = place
        return same
    except GpuLostError:
        return None  # it was destroyed while we looked at it
