"""Sensors of a card under `hwmon/`: temperatures, power and its limits, clocks, fans.

Which sensor a file belongs to is in the `_label` beside it, as `temp2_label` says `junction`. The number of the
folder changes when the driver is loaded again. Kernels give the power as a mean or as it is now, seldom both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import CardFiles, Fields

MAX_SENSORS: Final = 8
MICRO: Final = 1e-6
MILLI: Final = 1e-3
MAX_DUTY: Final = 255

_TEMPERATURES: Final = {"edge": "gpu", "junction": "junction", "mem": "memory"}
_CLOCKS: Final = {"sclk": "graphics", "mclk": "memory"}
_POWER: Final = ("power1_input", "power1_average")
_LIMITS: Final = {
    "current": "power1_cap",
    "enforced": "power1_cap",
    "default": "power1_cap_default",
    "min": "power1_cap_min",
    "max": "power1_cap_max",
}


@dataclass(frozen=True, slots=True)
class HwmonSensors:
    """Beginnings of file names: `hwmon/hwmon4/temp1`, by our name of the sensor."""

    folder: str = ""
    temperatures: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, str] = field(default_factory=dict)
    fans: Mapping[str, str] = field(default_factory=dict)


NO_SENSORS: Final = HwmonSensors()


def find_sensors(files: CardFiles) -> HwmonSensors:
    folder = next((name for name in files.names("hwmon") if name.startswith("hwmon")), "")
    if not folder:
        return NO_SENSORS
    folder = f"hwmon/{folder}"
    present = set(files.names(folder))
    temperatures = _labelled(files, folder, present, "temp", _TEMPERATURES)
    if not temperatures and "temp1_input" in present:  # old kernels have one sensor without a label
        temperatures = {"gpu": f"{folder}/temp1"}
    fans = {
        str(number - 1): f"{folder}/fan{number}"
        for number in range(1, MAX_SENSORS + 1)
        if f"fan{number}_input" in present
    }
    return HwmonSensors(folder, temperatures, _labelled(files, folder, present, "freq", _CLOCKS), fans)


def _labelled(
    files: CardFiles, folder: str, present: set[str], kind: str, sensors: Mapping[str, str]
) -> dict[str, str]:
    labelled = {}
    for number in range(1, MAX_SENSORS + 1):
        start = f"{kind}{number}"
        if f"{start}_label" in present:
            label = files.text(f"{folder}/{start}_label")
            if label is not ABSENT and label in sensors:
                labelled[sensors[label]] = f"{folder}/{start}"
    return labelled


def read_temperatures(files: CardFiles, sensors: HwmonSensors) -> dict[str, float]:
    values = {sensor: files.scaled(f"{start}_input", MILLI) for sensor, start in sensors.temperatures.items()}
    if "gpu" not in values and "junction" in values:
        values["gpu"] = values["junction"]
    return {sensor: value for sensor, value in values.items() if value is not ABSENT}


def read_clocks(files: CardFiles, sensors: HwmonSensors) -> dict[str, float]:
    values = {clock: files.scaled(f"{start}_input", 1.0) for clock, start in sensors.clocks.items()}
    return {clock: value for clock, value in values.items() if value is not ABSENT}


def read_power(files: CardFiles, sensors: HwmonSensors) -> Maybe[float]:
    """Of a processor with graphics: of the whole package."""
    if not sensors.folder:
        return ABSENT
    values = (files.scaled(f"{sensors.folder}/{name}", MICRO) for name in _POWER)
    return next((value for value in values if value is not ABSENT), ABSENT)


def read_fans(files: CardFiles, sensors: HwmonSensors) -> Fields:
    rpm, ratio = {}, {}
    for fan, start in sensors.fans.items():
        speed = files.scaled(f"{start}_input", 1.0)
        if speed is not ABSENT:
            rpm[fan] = speed
        duty = files.scaled(start.replace("/fan", "/pwm"), 1 / MAX_DUTY)
        if duty is not ABSENT:
            ratio[fan] = min(1.0, duty)
    return {"fan_rpm": rpm, "fan_speed_ratio": ratio}


def read_limits(files: CardFiles, sensors: HwmonSensors) -> Fields:
    """Limits of power, and the temperatures at which the card slows down (`crit`) or shuts down."""
    if not sensors.folder:
        return {}
    watts = {limit: files.scaled(f"{sensors.folder}/{name}", MICRO) for limit, name in _LIMITS.items()}
    gpu = sensors.temperatures.get("gpu") or sensors.temperatures.get("junction")
    memory = sensors.temperatures.get("memory")
    celsius: dict[str, Maybe[float]] = {}
    if gpu:
        celsius["slowdown"] = files.scaled(f"{gpu}_crit", MILLI)
        celsius["shutdown"] = files.scaled(f"{gpu}_emergency", MILLI)
    if memory:
        celsius["memory_max"] = files.scaled(f"{memory}_crit", MILLI)
    return {
        "power_limit_watts": {limit: value for limit, value in watts.items() if value is not ABSENT},
        "temperature_threshold_celsius": {
            name: value for name, value in celsius.items() if value is not ABSENT
        },
    }
