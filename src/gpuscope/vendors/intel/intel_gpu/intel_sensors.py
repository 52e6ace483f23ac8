"""Sensors of an Intel card under `hwmon/`: energy, temperatures, fans, limits of power.

xe numbers them by what they measure (1 the card, 2 the package, 3 its memory), i915 has one of each for the
device. The kernel counts energy and has no file for the power: it is the energy since the last reading. A limit
of 0 means that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import CardFiles, Fields
from gpuscope.vendors.intel.intel_gpu.intel_cards import I915, XE

MAX_SENSORS: Final = 8
MICRO: Final = 1e-6
MILLI: Final = 1e-3

_LABELS: Final = {"pkg": "gpu", "vram": "memory"}
_UNLABELLED: Final = {XE: {2: "gpu", 3: "memory"}, I915: {1: "gpu"}}
_CHANNELS: Final = (1, 2)
"""The card, or the package where the kernel has no number of the whole card."""


@dataclass(frozen=True, slots=True)
class CardSensors:
    """Names of files: `hwmon/hwmon4/temp2_input`."""

    temperatures: Mapping[str, str] = field(default_factory=dict)
    fans: Mapping[str, str] = field(default_factory=dict)
    energy: str = ""
    limit: str = ""
    rated: str = ""


NO_CARD_SENSORS: Final = CardSensors()


def find_card_sensors(files: CardFiles, driver: str) -> CardSensors:
    """i915 has a further folder for each part of the GPU; the name of the driver is that of the whole."""
    folders = [f"hwmon/{name}" for name in files.names("hwmon") if name.startswith("hwmon")]
    folder = next((folder for folder in folders if files.text(f"{folder}/name") == driver), None)
    if folder is None:
        return NO_CARD_SENSORS
    present = set(files.names(folder))

    def first(pattern: str) -> str:
        names = (pattern.format(channel) for channel in _CHANNELS)
        return next((f"{folder}/{name}" for name in names if name in present), "")

    temperatures: dict[str, str] = {}
    for number in range(1, MAX_SENSORS + 1):
        sensor = _sensor(files, folder, present, number, driver)
        if f"temp{number}_input" in present and sensor:
            temperatures.setdefault(sensor, f"{folder}/temp{number}_input")
    fans = {
        str(number - 1): f"{folder}/fan{number}_input"
        for number in range(1, MAX_SENSORS + 1)
        if f"fan{number}_input" in present
    }
    return CardSensors(
        temperatures, fans, first("energy{}_input"), first("power{}_max"), first("power{}_rated_max")
    )


def _sensor(files: CardFiles, folder: str, present: set[str], number: int, driver: str) -> str:
    """Our name of it; empty for one that has no name here."""
    if f"temp{number}_label" in present:
        label = files.text(f"{folder}/temp{number}_label")
        return "" if label is ABSENT else _LABELS.get(label, "")
    return _UNLABELLED[driver].get(number, "")


class EnergyMeter:
    """Power from two readings of the energy."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def read(self, files: CardFiles, sensors: CardSensors, at: float) -> Fields:
        """`at` is a monotonic time in seconds."""
        joules = files.scaled(sensors.energy, MICRO) if sensors.energy else ABSENT
        if joules is ABSENT:
            self._last = None
            return {}
        last, self._last = self._last, (joules, at)
        fields: Fields = {"energy_joules": joules}
        if last is not None and at > last[1] and joules >= last[0]:
            fields["power_watts"] = (joules - last[0]) / (at - last[1])
        return fields


def read_card_temperatures(files: CardFiles, sensors: CardSensors) -> dict[str, float]:
    values = {sensor: files.scaled(name, MILLI) for sensor, name in sensors.temperatures.items()}
    return {sensor: value for sensor, value in values.items() if value is not ABSENT}


def read_card_fans(files: CardFiles, sensors: CardSensors) -> dict[str, float]:
    values = {fan: files.scaled(name, 1.0) for fan, name in sensors.fans.items()}
    return {fan: value for fan, value in values.items() if value is not ABSENT}


def read_power_limits(files: CardFiles, sensors: CardSensors) -> dict[str, float]:
    limit, rated = _limit(files, sensors.limit), _limit(files, sensors.rated)
    values = {"current": limit, "enforced": limit, "default": rated}
    return {name: value for name, value in values.items() if value is not ABSENT}


def _limit(files: CardFiles, name: str) -> Maybe[float]:
    watts = files.scaled(name, MICRO) if name else ABSENT
    return watts if watts is not ABSENT and watts > 0 else ABSENT
