"""dcgm-exporter's `-d`: which GPUs and MIG instances are exported.

`f` takes every GPU, or its MIG instances instead where it has any; `g` whole GPUs, `i` instances, both with an
optional list of DCGM's numbers (`g:0,2-4`), which for instances are not the driver's instance ids. A number
that is not there selects nothing and ends nothing: GPUs come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuscope.errors import UsageError
from gpuscope.readings import Device, MigInstance
from gpuscope.readings.dcgm_fields import ENTITY_NUMBER_ID
from gpuscope.readings.device import GpuOrInstance

LARGEST_ID = 1_000_000  # a range of ids is written out; this keeps a slip of the finger from filling the memory


@dataclass(frozen=True, slots=True)
class Entity:
    """What a series is about: a whole GPU, or one MIG instance of it."""

    device: Device
    instance: MigInstance | None = None


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """`kind` is f, g or i; no `ids` means all."""

    kind: str = "f"
    ids: frozenset[int] | None = None

    def entities(self, devices: Iterable[Device]) -> Iterator[Entity]:
        instances = 0  # DCGM numbers the instances of all GPUs in one row
        for device in devices:
            if self.kind == "g" or (self.kind == "f" and not device.instances):
                if self._takes(number_of(device, device.index)):
                    yield Entity(device)
            elif self.kind != "g":
                for instance in device.instances:
                    if self._takes(number_of(instance, instances)):
                        yield Entity(device, instance)
                    instances += 1

    def _takes(self, number: int) -> bool:
        return self.ids is None or number in self.ids


EVERYTHING = DeviceSelector()


def number_of(part: GpuOrInstance, otherwise: int) -> int:
    """DCGM's own number of a GPU or an instance, where DCGM was asked."""
    number = part.dcgm_fields.get(ENTITY_NUMBER_ID, otherwise)
    return number if isinstance(number, int) else otherwise


def parse_selector(text: str, origin: str) -> DeviceSelector:
    kind, colon, ids = text.partition(":")
    if kind not in ("f", "g", "i"):
        raise UsageError(f"{origin}: {text!r} starts with none of f, g and i; for instance f, g:0,1 or i:0,2-4")
    if not colon:
        return DeviceSelector(kind)
    if kind == "f":
        raise UsageError(f"{origin}: {text!r} has ids behind f, which takes none; use g:{ids} or i:{ids}")
    if ":" in ids:
        raise UsageError(f"{origin}: {text!r} has more than one list of ids; separate ids by commas")
    return DeviceSelector(
        kind, frozenset(number for part in ids.split(",") for number in _ids(part, text, origin))
    )


def _ids(part: str, text: str, origin: str) -> range:
    first, dash, last = part.partition("-")
    try:
        start = _whole(first)
        end = _whole(last) if dash else start
    except ValueError:
        raise UsageError(f"{origin}: {part!r} in {text!r} is neither an id nor a range such as 2-4") from None
    return range(start, end + 1)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) > LARGEST_ID:
        raise ValueError(text)
    return int(text)
