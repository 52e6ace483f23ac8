"""Card values, as the recordings of dcgm-exporter have them in YAML, put into the fake driver and scraped.

The recordings' own mock driver does not read every value of its file: some calls always answer 0, and profiling
follows from the utilisation. `MOCK_ANSWERS` and `profiling_flows` say so, because they are what DCGM saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot, SourceStatus
from gpuscope.serve.stand_ins import plan_listeners, settings_for
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from gpuscope.vendors.nvidia.nvml.tiers import plan_tiers
from tests.fake_nvml.driver import FakeDriver
from tests.fast_yaml import read_yaml
from tests.sources.nvml_rig import FAST, Rig

ALL_LINKS = 0xFFFFFFFF
ECC_PLACES = {"device_memory": "dram", "l1_cache": "l1", "l2_cache": "l2", "register_file": "register"} | {
    "texture_memory": "texture"
}
REASONS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "app_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "display_clocks_setting": "display_clocks",
}
MOCK_ANSWERS: dict[str, float | None] = {
    **dict.fromkeys(("pcie_replay", "util_encoder", "util_decoder"), 0),
    **dict.fromkeys(("remapped_correctable", "remapped_uncorrectable", "remapped_failure"), 0),
    **dict.fromkeys(("nvlink_tx_kibps", "nvlink_rx_kibps"), 0),
}
MOCK_FIELDS = (29, 30, 31)  # retired pages: also answered with 0


def _merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def card_values(path: Path) -> list[dict[str, Any]]:
    """The values of each GPU, with the defaults of its file filled in."""
    document = read_yaml(path.read_text())
    return [_merged(document["device_defaults"], own) for own in document["devices"]]


def profiling_flows(utilization: dict[str, float]) -> dict[str, float]:
    busy, memory = utilization["gpu"], utilization["memory"]
    shares = {"sm_active": 1, "sm_occupancy": 0.75, "tensor": 0.5, "fp64": 0.05, "fp32": 0.25, "fp16": 0.35}
    pcie_kbps = busy / 100 * 2048 * 1048576 / 1000  # the mock says 2 GiB/s at full use
    return {
        **{flow: busy * share for flow, share in shares.items()},
        "dram": memory,
        "pcie_tx_kbps": pcie_kbps,
        "pcie_rx_kbps": pcie_kbps,
    }


def _keys(card: dict[str, Any]) -> dict[str, Any]:
    clocks, memory, thermal, power = (card[part] for part in ("clocks", "memory", "thermal", "power"))
    inforom = card["inforom"]
    domain, bus, device = card["pci"]["bus_id"].split(":")
    keys = {
        "uuid": card["uuid"],
        "name": card["name"],
        "serial": card["serial"],
        "vbios": card["vbios_version"],
        "inforom_image": inforom["image_version"],
        "inforom_oem": inforom["oem_object"],
        "inforom_ecc": inforom["ecc_object"],
        "inforom_power": inforom["pwr_object"],
        "minor": card["minor_number"],
        "pci_domain": int(domain, 16),
        "pci_bus": int(bus, 16),
        "pci_device": int(device.partition(".")[0], 16),
        **{f"clock_{name}": clocks[f"{name}_current"] for name in ("sm", "memory", "graphics", "video")},
        **{f"memory_{name}": memory[f"{name}_bytes"] for name in ("total", "used", "reserved")},
        "temperature": thermal["temperature_gpu_c"],
        "temperature_memory": thermal["temperature_memory_c"],
        "power_mw": power["current_draw_mw"],
        "util": card["utilization"]["gpu"],
        "util_memory": card["utilization"]["memory"],
    }
    for place, key in ECC_PLACES.items():
        for kind, bits in (("corrected", "single_bit"), ("uncorrected", "double_bit")):
            for span in ("volatile", "aggregate"):
                keys[f"ecc_{kind}_{span}_{key}"] = card["ecc"]["errors"][span][bits][place]
    return keys | MOCK_ANSWERS


def put_cards(driver: FakeDriver, cards: list[dict[str, Any]], model: str) -> None:
    """Sets each GPU of the fake driver to the values of one card, as if they were old."""
    driver.gpus(len(cards), model=model)
    with driver.at_once():
        for number, card in enumerate(cards):
            reasons = card["clocks_throttle_reasons"]
            held = [REASONS[name] for name, holds in reasons.items() if holds is True]
            keys = _keys(card) | (profiling_flows(card["utilization"]) if model == "H100" else {})
            driver.set(number, reasons=held, ago=30, **keys)
            driver.field(number, 83, card["power"]["total_energy_consumption_mj"], kind="l")
            for field in MOCK_FIELDS:
                driver.field(number, field, 0, kind="l")
            counters = reasons.get("counters", {})
            for field, name in ((74, "sw_power_cap_us"), (75, "sw_thermal_slowdown_us"), (76, "sync_boost_us")):
                driver.field(number, field, 1000 * counters.get(name, 0), kind="l")
            for field in range(77, 82):
                driver.field(number, field, 0, kind="l", error="NOT_SUPPORTED")


class Machine:
    """The agent's path from the driver to the exposition, with a controlled clock."""

    def __init__(self, driver: FakeDriver, folder: Path, *argv: str) -> None:
        settings = Settings(dcgm_hostname_label="hostname")
        (self.plan,) = plan_listeners(settings, [("dcgm-exporter", argv)])
        told = settings_for([self.plan], settings)
        self.rig = Rig(driver, folder)
        tier_plan = plan_tiers(told.dcgm_fields, told.dcgm_interval)
        self.rig.opened = NvmlSource(self.rig.kernel_list, self.rig.clocks, tier_plan=tier_plan)
        self.ledger = ErrorLedger()

    def scrape(self, seconds: float = 1.0) -> str:
        reading = self.rig.tick(seconds, FAST)
        self.ledger.add(reading.errors)
        driver = reading.drivers[NVIDIA]
        assert driver is not ABSENT
        shot = Snapshot(
            node="vm",
            taken_at=self.rig.clocks.now(),
            drivers={
                NVIDIA: replace(driver, library_versions={**driver.library_versions, "nvml": "12.550.163.01"})
            },
            devices=reading.devices,
            errors=self.ledger.totals(reading.devices),
            sources=(SourceStatus(name="nvml", up=True, why=""),),
        )
        return encode_text(self.plan.builders[0].to_families(shot)).decode()

    def close(self) -> None:
        self.rig.close()


@contextmanager
def closing_machines(driver: FakeDriver, folder: Path) -> Iterator[Callable[..., Machine]]:
    """Makes machines that have been scraped once, and closes them: a source has a thread for each GPU."""
    with ExitStack() as made:

        def make(*argv: str) -> Machine:
            machine = Machine(driver, folder, "-c", "1000", *argv)
            made.callback(machine.close)
            machine.scrape()
            return machine

        yield make
