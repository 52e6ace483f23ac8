"""dcgm-exporter's `-d`: the GPUs and MIG instances to export.

`f` selects every GPU, or its MIG instances if it has any; `g` whole GPUs; `i` instances. `g` and `i` take a
list of DCGM's numbers (`g:0,2-4`), which for instances differ from the driver's ids. A number that does not
exist selects nothing and is not an error, because GPUs can be added and removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuscope.base.errors import UsageError
from gpuscope.model.readings import Device, Instance
from gpuscope.model.readings.device import GpuOrInstance
from gpuscope.vendors.nvidia.dcgm_fields import ENTITY_NUMBER_ID
from gpuscope.vendors.nvidia.nvidia_values import own

MAX_ID = 1_000_000  # ranges are expanded; a typing error must not fill the memory


@dataclass(frozen=True, slots=True)
class DcgmEntity:
    """The GPU or MIG instance of a series."""

    device: Device
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """`kind` is f, g or i; no `ids` means all."""

    kind: str = "f"
    ids: frozenset[int] | None = None

    def entities(self, devices: Iterable[Device]) -> Iterator[DcgmEntity]:
        instances = 0  # DCGM numbers the instances of all GPUs in one sequence
        for device in devices:
            if self.kind == "g" or (self.kind == "f" and not device.instances):
                if self._takes(number_of(device, device.index)):
                    yield DcgmEntity(device)
            elif self.kind != "g":
                for instance in device.instances:
                    if self._takes(number_of(instance, instances)):
                        yield DcgmEntity(device, instance)
                    instances += 1

    def _takes(self, number: int) -> bool:
        return self.ids is None or number in self.ids


EVERYTHING = DeviceSelector()


def number_of(part: GpuOrInstance, otherwise: int) -> int:
    """DCGM's number of a GPU or instance, or `otherwise` if the reading is not from DCGM."""
    number = own(part).dcgm_fields.get(ENTITY_NUMBER_ID, otherwise)
    return number if isinstance(number, int) else otherwise


def parse_selector(text: str, origin: str) -> DeviceSelector:
    kind, colon, ids = text.partition(":")
    if kind not in ("f", "g", "i"):
        raise UsageError(f"{origin}: {text!r} does not start with f, g or i; for example f, g:0,1 or i:0,2-4")
    if not colon:
        return DeviceSelector(kind)
    if kind == "f":
        raise UsageError(f"{origin}: {text!r} has ids after f, which takes none; use g:{ids} or i:{ids}")
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
    if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) > MAX_ID:
        raise ValueError(text)
    return int(text)
