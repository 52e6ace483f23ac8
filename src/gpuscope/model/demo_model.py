"""How a vendor takes part in the simulated fleet: its models, and how a device is made of simulated readings.

`DEMO` of a vendor's `demo_models.py` is found by being there. What a model cannot report is None, 0 or empty
here and ABSENT in every reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from typing import Any, Final

from gpuscope.base.plugins import find_plugins
from gpuscope.model.readings import Device, Driver, Instance, Uuid

MIB: Final = 1024.0 * 1024.0
MHZ: Final = 1e6

Readings = dict[str, Any]
"""By name: those of a `Device`, and what only the vendor's devices have."""


class Slowdown(IntFlag):
    """Why the clocks of a simulated GPU are low; the vendor has its own words for each."""

    IDLE = 1
    POWER_CAP = 2
    HEAT = 4
    HOT_HARDWARE = 8


NOT_SLOWED: Final = Slowdown(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """A size of the parts that a model can be split into."""

    name: str
    memory_mib: int
    chip_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    key: str  # what a user types
    name: str

    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    hbm: bool  # stacked memory has its own temperature sensor

    power_limit: float
    power_limit_min: float
    power_limit_max: float
    power_idle: float

    graphics_mhz: int
    memory_mhz: int
    video_mhz: int
    idle_graphics_mhz: int
    idle_memory_mhz: int
    idle_pstate: int

    shutdown_celsius: float
    slowdown_celsius: float
    gpu_max_celsius: float
    memory_max_celsius: float | None
    reports_margin: bool
    celsius_per_watt: float
    cooling_seconds: float  # the time constant with which temperature follows power

    pcie_generation: int
    links: int = 0  # to other GPUs
    link_bytes_per_second: float = 0.0  # of one link, each way
    fans: int = 0
    ecc: bool = True
    contains_errors: bool = True  # an uncorrected memory error ends one program only
    profiling: bool = True
    fp64_counter: bool = True
    integer_counter: bool = True
    profiles: tuple[InstanceProfile, ...] = ()
    layouts: tuple[tuple[tuple[int, int], ...], ...] = ()  # (instance id, row of `profiles`); ids are sparse
    is_on_arm: bool = False  # the processor of its machine

    @property
    def memory_bytes(self) -> float:
        return self.memory_mib * MIB


@dataclass(frozen=True, slots=True)
class DemoIdentity:
    uuid: Uuid
    serial: str
    pci_bus_id: str
    quality: float  # power that this chip needs, as a share of the model's worst chip
    warmth: float  # degrees Celsius that its place in the airflow adds


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoGpus:
    """The functions take one of `models`, which may be of a class of the vendor's own."""

    vendor: str
    models: Mapping[str, DemoModel]
    aliases: Mapping[str, str]
    split_suffix: str
    """After a model's key: some of the node's GPUs are split."""
    driver: Driver
    error_reporter: str
    """The source that reports errors."""
    uuid_start: str
    instance_uuid_start: str
    pci_bus_id: Callable[[Any, int], str]
    """Of the GPU with this index on its node."""
    identity_readings: Callable[[int, Any, DemoIdentity], Readings]
    """Names and ids, which stay known when the GPU is lost."""
    constant_readings: Callable[[int, Any, DemoIdentity, bool], Readings]
    """What never changes; the last argument says whether the GPU is split."""
    varying_readings: Callable[[Any, Readings], Readings]
    """Simulated readings with the vendor's own in place of those that only the simulation has: `slowdown`,
    `slowed_seconds` (by power, heat, hot hardware), `link_rate`."""
    peer_readings: Callable[[Any, int, list[int]], Readings]
    """Of a GPU with this index and its peers."""
    make_device: Callable[..., Device]
    make_instance: Callable[..., Instance]


@cache
def demo_gpus() -> Mapping[str, DemoGpus]:
    """By vendor."""
    plugins = find_plugins(("vendors/*/demo_models.py",))
    return {
        name: importlib.import_module(f"{plugin.package}.demo_models").DEMO for name, plugin in plugins.items()
    }


@cache
def demo_models() -> Mapping[str, DemoModel]:
    """Of all vendors, by the key that a user types."""
    return {key: model for gpus in demo_gpus().values() for key, model in gpus.models.items()}


def demo_gpus_of(model: DemoModel) -> DemoGpus:
    return next(gpus for gpus in demo_gpus().values() if model.key in gpus.models)
