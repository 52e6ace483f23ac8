"""Every number of the fake driver is in its reading and unit; 0 stays 0, a refused number is absent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.model.readings import ABSENT, Device
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, OWN_NAMES, own
from tests.fake_nvml.driver import FakeDriver, Link
from tests.fake_nvml.fixtures import driver
from tests.fakes import Keywords, present
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]

# The fake's key -> attribute, label, and what one unit of the key is in ours
LEVELS: dict[str, tuple[str, Any, float]] = {
    "util": ("utilization_ratio", None, 0.01),
    "util_memory": ("memory_utilization_ratio", None, 0.01),
    "util_encoder": ("encoder_utilization_ratio", None, 0.01),
    "util_decoder": ("decoder_utilization_ratio", None, 0.01),
    "util_jpeg": ("jpeg_utilization_ratio", None, 0.01),
    "util_ofa": ("ofa_utilization_ratio", None, 0.01),
    "memory_total": ("memory_total_bytes", None, 1),
    "memory_used": ("memory_used_bytes", None, 1),
    "memory_reserved": ("memory_reserved_bytes", None, 1),
    "bar1_total": ("bar1_total_bytes", None, 1),
    "bar1_used": ("bar1_used_bytes", None, 1),
    "temperature": ("temperature_celsius", "gpu", 1),
    "temperature_memory": ("temperature_celsius", "memory", 1),
    "temperature_margin": ("temperature_margin_celsius", None, 1),
    "threshold_shutdown": ("temperature_threshold_celsius", "shutdown", 1),
    "threshold_slowdown": ("temperature_threshold_celsius", "slowdown", 1),
    "threshold_memory_max": ("temperature_threshold_celsius", "memory_max", 1),
    "threshold_gpu_max": ("temperature_threshold_celsius", "gpu_max", 1),
    "power_mw": ("power_watts", None, 0.001),
    "power_limit_mw": ("power_limit_watts", "current", 0.001),
    "power_enforced_mw": ("power_limit_watts", "enforced", 0.001),
    "power_default_mw": ("power_limit_watts", "default", 0.001),
    "power_min_mw": ("power_limit_watts", "min", 0.001),
    "power_max_mw": ("power_limit_watts", "max", 0.001),
    "clock_graphics": ("clock_hertz", "graphics", 1e6),
    "clock_sm": ("clock_hertz", "sm", 1e6),
    "clock_memory": ("clock_hertz", "memory", 1e6),
    "clock_video": ("clock_hertz", "video", 1e6),
    "clock_graphics_max": ("clock_max_hertz", "graphics", 1e6),
    "clock_sm_max": ("clock_max_hertz", "sm", 1e6),
    "clock_memory_max": ("clock_max_hertz", "memory", 1e6),
    "clock_video_max": ("clock_max_hertz", "video", 1e6),
    "clock_graphics_app": ("clock_application_hertz", "graphics", 1e6),
    "clock_memory_app": ("clock_application_hertz", "memory", 1e6),
    "clock_graphics_app_default": ("clock_default_application_hertz", "graphics", 1e6),
    "clock_memory_app_default": ("clock_default_application_hertz", "memory", 1e6),
    "pstate": ("performance_state", None, 1),
    "fan_percent": ("fan_speed_ratio", "0", 0.01),
    "fan_rpm": ("fan_rpm", "0", 1),
    "pcie_gen": ("pcie_link_generation", None, 1),
    "pcie_gen_max": ("pcie_link_generation_max", None, 1),
    "pcie_width": ("pcie_link_width", None, 1),
    "pcie_width_max": ("pcie_link_width_max", None, 1),
    "pcie_tx_kbps": ("pcie_bytes_per_second", "tx", 1000),
    "pcie_rx_kbps": ("pcie_bytes_per_second", "rx", 1000),
    "pcie_replay": ("pcie_replays", None, 1),
    "ecc_mode": ("ecc_enabled", None, 1),
    "ecc_pending": ("ecc_pending", None, 1),
    "ecc_corrected_volatile_l1": ("ecc_location_errors", ("corrected", "volatile", "l1_cache"), 1),
    "ecc_corrected_aggregate_l2": ("ecc_location_errors", ("corrected", "aggregate", "l2_cache"), 1),
    "ecc_uncorrected_volatile_dram": ("ecc_location_errors", ("uncorrected", "volatile", "device_memory"), 1),
    "ecc_uncorrected_aggregate_register": (
        "ecc_location_errors",
        ("uncorrected", "aggregate", "register_file"),
        1,
    ),
    "ecc_corrected_volatile_texture": ("ecc_location_errors", ("corrected", "volatile", "texture_memory"), 1),
    "ecc_uncorrected_aggregate_cbu": ("ecc_location_errors", ("uncorrected", "aggregate", "cbu"), 1),
    "ecc_uncorrected_volatile_sram": ("ecc_location_errors", ("uncorrected", "volatile", "sram"), 1),
    "sram_volatile_parity": ("ecc_sram_errors", ("parity", "volatile"), 1),
    "sram_volatile_secded": ("ecc_sram_errors", ("sec_ded", "volatile"), 1),
    "sram_aggregate_parity": ("ecc_sram_errors", ("parity", "aggregate"), 1),
    "sram_aggregate_secded": ("ecc_sram_errors", ("sec_ded", "aggregate"), 1),
    "sram_bucket_l2": ("ecc_sram_sources", "l2", 1),
    "sram_bucket_sm": ("ecc_sram_sources", "sm", 1),
    "sram_bucket_pcie": ("ecc_sram_sources", "pcie", 1),
    "sram_bucket_mcu": ("ecc_sram_sources", "microcontroller", 1),
    "sram_bucket_other": ("ecc_sram_sources", "other", 1),
    "sram_threshold_exceeded": ("ecc_sram_threshold_exceeded", None, 1),
    "tlimit_shutdown": ("temperature_margin_threshold_celsius", "shutdown", 1),
    "tlimit_slowdown": ("temperature_margin_threshold_celsius", "slowdown", 1),
    "tlimit_memory_max": ("temperature_margin_threshold_celsius", "memory_max", 1),
    "tlimit_gpu_max": ("temperature_margin_threshold_celsius", "gpu_max", 1),
    "recovery_action": ("recovery_action", None, 1),
    "retired_pending": ("retired_pages_pending", None, 1),
    "remapped_correctable": ("remapped_rows", "correctable", 1),
    "remapped_uncorrectable": ("remapped_rows", "uncorrectable", 1),
    "remapped_pending": ("row_remap_pending", None, 1),
    "remapped_failure": ("row_remap_failed", None, 1),
    "remap_banks_max": ("row_remap_banks", "max", 1),
    "remap_banks_high": ("row_remap_banks", "high", 1),
    "remap_banks_partial": ("row_remap_banks", "partial", 1),
    "remap_banks_low": ("row_remap_banks", "low", 1),
    "remap_banks_none": ("row_remap_banks", "none", 1),
    "compute_mode": ("compute_mode", None, 1),
    "persistence_mode": ("persistence_mode", None, 1),
    "power_management": ("power_management", None, 1),
    "accounting_mode": ("accounting_enabled", None, 1),
    "accounting_buffer": ("accounting_buffer_size", None, 1),
    "pcie_gen_device_max": ("pcie_link_generation_gpu_max", None, 1),
    "reasons_supported": ("throttle_mask_supported", None, 1),
    "gsp_mode": ("gsp_firmware", "current", 1),
    "protected_total": ("protected_memory_bytes", "total", 1),
    "protected_used": ("protected_memory_bytes", "used", 1),
    "fabric_state": ("fabric_state", None, 1),
    "c2c_mode": ("c2c_enabled", None, 1),
    "display_mode": ("display_attached", None, 1),
    "display_active": ("display_active", None, 1),
}
# Keys that one call answers together: one taken away takes the others with it.
TOGETHER = {
    "memory_total", "memory_used", "memory_reserved", "bar1_total", "bar1_used", "ecc_mode", "ecc_pending",
    "power_min_mw", "power_max_mw", "remap_banks_max", "remap_banks_high", "remap_banks_partial",
    "remap_banks_low", "remap_banks_none", "util", "util_memory",
    "protected_total", "protected_used", *(key for key in LEVELS if key.startswith("sram_")),
}  # fmt: skip
MODELS = ("H100", "A100", "T4", "RTX 4090", "V100", "GB200")


def reading_of(device: Device, attribute: str, label: Any) -> Any:
    value = getattr(own(device) if attribute in OWN_NAMES else device, attribute)
    return value if label is None else value.get(label, ABSENT)


def keys_of(fake: FakeDriver) -> set[str]:
    """The keys of LEVELS that this model has."""
    card = fake.cards[0]
    return LEVELS.keys() & (card.numbers.keys() | card.phases[-1].values.keys())


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    driver.gpus(2)
    with Rig(driver, tmp_path) as rig:
        yield rig


@pytest.mark.parametrize("model", MODELS)
def test_every_number_arrives_in_its_unit(rig: Rig, model: str) -> None:
    rig.driver.gpus(1, model=model)
    has = keys_of(rig.driver)
    assert len(has) > 40
    # 7, 8, 9 … for each: no two numbers are alike, and none can stand for another.
    values = {key: 7 + place for place, key in enumerate(sorted(has))}
    values |= {"memory_total": 1 << 36, "pstate": 2} | {"ecc_mode": 1, "ecc_pending": 0}
    values |= dict.fromkeys(
        has & {"persistence_mode", "power_management", "accounting_mode", "display_mode", "display_active"}, 1
    )
    rig.driver.set(0, **Keywords({key: value for key, value in values.items() if key in has}))
    rig.read()
    device = rig.tick().devices[0]
    for key, (attribute, label, unit) in LEVELS.items():
        read = reading_of(device, attribute, label)
        if key in has:
            assert read == pytest.approx(values[key] * unit), key
        else:
            assert read is ABSENT, key


@pytest.mark.parametrize("model", MODELS)
def test_zero_stays_zero(rig: Rig, model: str) -> None:
    rig.driver.gpus(1, model=model)
    has = keys_of(rig.driver) - {"ecc_mode"}  # off, it takes the counters away
    rig.driver.set(0, **Keywords(dict.fromkeys(has, 0)))
    rig.read()
    device = rig.tick().devices[0]
    for key in has:
        attribute, label, _ = LEVELS[key]
        assert reading_of(device, attribute, label) == 0, key


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_number_is_absent_and_the_others_stay(rig: Rig, model: str) -> None:
    rig.driver.gpus(1, model=model)
    has = sorted(keys_of(rig.driver) - TOGETHER)
    gone, kept = has[::2], has[1::2]
    rig.driver.set(0, **Keywords(dict.fromkeys(gone)))
    rig.read()
    reading = rig.tick()
    for key in gone:
        attribute, label, _ = LEVELS[key]
        assert reading_of(reading.devices[0], attribute, label) is ABSENT, key
    for key in kept:
        attribute, label, _ = LEVELS[key]
        assert reading_of(reading.devices[0], attribute, label) is not ABSENT, key
    assert reading.failures == {}


def test_identity(rig: Rig) -> None:
    rig.driver.gpus(2, model="H100")
    card = rig.driver.cards[1]
    device = rig.device(1)
    assert device.uuid == card.uuid
    assert device.index == 1
    assert device.model == "NVIDIA H100 80GB HBM3"
    assert device.brand == "NVIDIA"
    assert device.architecture == "Hopper"
    assert device.compute_capability == "9.0"
    assert device.serial == card.texts["serial"]
    assert device.pci_bus_id == "00000000:1B:00.0"
    assert device.pci_ids == {"device": 0x233010DE, "sub_device": 0x16C110DE, "base_class": 3, "sub_class": 2}
    assert device.minor_number == 1
    assert device.vbios_version == card.texts["vbios"]
    assert device.board_part_number == card.texts["part_number"]
    assert own(device).inforom_versions["ecc"] == "7.16"
    driver_said = rig.read().drivers[NVIDIA]
    assert (driver_said.driver_version, driver_said.library_versions["cuda"]) == ("580.95.05", "13.0")


def test_geforce_has_no_serial_and_two_fans(rig: Rig) -> None:
    rig.driver.gpus(1, model="RTX 4090")
    rig.driver.set(0, fan_percent=43)
    device = rig.device()
    assert device.serial is ABSENT
    assert device.brand == "GeForce"
    assert dict(device.fan_speed_ratio) == {"0": 0.43, "1": 0.43}
    assert not device.ecc_errors
    assert own(device).mig_enabled is ABSENT


def test_throttle_reasons_and_their_time(rig: Rig) -> None:
    rig.driver.set(0, reasons=["sw_power_cap", "hw_thermal"])
    before = rig.device()
    after = rig.tick(30).devices[0]
    assert own(after).throttle_mask == 0x04 | 0x40
    for reason, seconds in {"sw_power_cap": 30, "hw_thermal_slowdown": 30, "sync_boost": 0}.items():
        gained = after.throttled_seconds[reason] - before.throttled_seconds[reason]
        assert gained == pytest.approx(seconds), reason
    assert own(after).violation_seconds["power"] - own(before).violation_seconds["power"] == pytest.approx(30)


@pytest.mark.parametrize(
    ("version", "has_times"),
    [
        ("470.256.02", False), ("525.147.05", False), ("535.261.03", False), ("550.163.01", False),
        ("570.172.08", False), ("575.51.03", True), ("575.64.05", True), ("580.65.06", True),
        ("580.82.07", True), ("580.126.09", True), ("590.48.01", True), ("615.71.02", True),
    ],
)  # fmt: skip
def test_throttle_times_of_every_release(rig: Rig, version: str, has_times: bool) -> None:
    """Their field ids have moved twice; at the wrong ones are settings, or nothing."""
    rig.driver.reload(version)
    rig.driver.set(0, reasons=["sw_power_cap", "hw_thermal"])
    before = rig.device()
    after = rig.tick(30).devices[0]
    gained = {
        reason: after.throttled_seconds[reason] - seconds
        for reason, seconds in before.throttled_seconds.items()
    }
    expected = {"sw_power_cap": 30, "sync_boost": 0}
    if has_times:
        expected |= {"hw_thermal_slowdown": 30, "sw_thermal_slowdown": 0, "hw_power_brake_slowdown": 0}
    assert gained == pytest.approx(expected)


def test_energy_is_the_integral_of_power(rig: Rig) -> None:
    rig.driver.set(0, power_mw=250_000)
    before = rig.device()
    after = rig.tick(20).devices[0]
    assert present(after.energy_joules) - present(before.energy_joules) == pytest.approx(5000, abs=0.01)
    assert after.power_instant_watts == 250
    assert after.power_average_watts == 250


def test_nvlinks(rig: Rig) -> None:
    rig.driver.set(0, nvlink_tx_kibps=18 * 1000, nvlink_rx_kibps=0)
    rig.driver.link(0, 3, Link(active=False, crc_flit=11, crc_data=12, replay=13, recovery=14))
    rig.driver.link(0, 17, Link(crc_flit=21, replay=23, recovery=24))
    before = rig.device()
    after = rig.tick(10).devices[0]
    assert sorted(after.link_up, key=int) == [str(link) for link in range(18)]
    assert after.link_up["3"] == 0
    assert after.link_up["17"] == 1
    assert after.link_bytes["tx"] - before.link_bytes["tx"] == pytest.approx(18 * 1000 * 1024 * 10)
    assert after.link_bytes["rx"] == before.link_bytes["rx"]
    link_bytes = after.link_bytes_each["4", "tx"] - before.link_bytes_each["4", "tx"]
    assert link_bytes == pytest.approx(1000 * 1024 * 10, rel=1e-3)
    assert after.link_errors["3", "crc_flit"] == 11
    assert after.link_errors["3", "crc_data"] == 12
    assert after.link_errors["3", "replay"] == 13
    assert after.link_errors["3", "recovery"] == 14
    assert after.link_errors["17", "replay"] == 23
    assert after.link_errors["17", "recovery"] == 24


def test_nvlink_5_counts_bytes_per_link(rig: Rig) -> None:
    rig.driver.gpus(1, model="B200")
    rig.driver.set(0, nvlink_tx_kibps=18 * 1000)
    before = rig.device()
    after = rig.tick(10).devices[0]
    for link in ("0", "17"):
        gained = after.link_bytes_each[link, "tx"] - before.link_bytes_each[link, "tx"]
        assert gained == pytest.approx(1000 * 1024 * 10, rel=1e-3)


def test_nvlink_5_has_sums_and_the_links_that_had_errors(rig: Rig) -> None:
    rig.driver.gpus(1, model="B200")
    healthy = own(rig.device())
    assert (healthy.nvlink5_errors, healthy.nvlink5_bit_error_ratio) == ({}, {})
    assert healthy.nvlink5_errors_all_links == dict.fromkeys(_LINK_5_KINDS, 0)
    assert healthy.nvlink5_bit_error_max_ratio == {"effective": 0, "symbol": 0}
    rig.driver.field(0, 215, 505, scope=14, kind="l")
    rig.driver.field(0, 206, 2, scope=3, kind="l")
    rig.driver.field(0, 220, 4e-11, scope=14, kind="d")
    rig.driver.field(0, 222, 3 << 8 | 12, scope=14, kind="l")
    failing = own(rig.tick(60).devices[0])
    assert failing.nvlink5_errors == {("14", "recovery"): 505, ("3", "malformed_packet"): 2}
    assert failing.nvlink5_errors_all_links["recovery"] == 505
    assert failing.nvlink5_bit_error_ratio["14", "effective"] == 4e-11, "a double is the ratio itself"
    assert failing.nvlink5_bit_error_ratio["14", "symbol"] == pytest.approx(3e-12)
    rig.driver.field(0, 215, 0, scope=14, kind="l")
    reset = own(rig.tick(60).devices[0])
    assert reset.nvlink5_errors["14", "recovery"] == 0, "a series does not vanish when its counter restarts"


def test_older_nvlinks_have_none_of_nvlink_5(rig: Rig) -> None:
    values = own(rig.device())
    assert not values.nvlink5_errors_all_links
    assert not values.nvlink5_bit_error_max_ratio


_LINK_5_KINDS = (
    "malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general", "local_integrity",
    "transmit_discard", "recovery_successful", "recovery_failed", "recovery", "effective", "symbol",
)  # fmt: skip


def test_no_links_no_nvlink_series(rig: Rig) -> None:
    rig.driver.gpus(1, model="T4")
    device = rig.device()
    assert not device.link_up
    assert not device.link_bytes
    assert not device.link_errors


def test_retired_pages(rig: Rig) -> None:
    rig.driver.gpus(1, model="V100")
    rig.driver.retire_page(0, 0x1000)
    rig.driver.retire_page(0, 0x2000)
    rig.driver.retire_page(0, 0x3000, double_bit=True)
    assert dict(own(rig.device()).retired_pages) == {"single_bit": 2, "double_bit": 1}


def test_ecc_totals(rig: Rig) -> None:
    rig.driver.set(0, ecc_uncorrected_aggregate_dram=3, ecc_uncorrected_aggregate_sram=4)
    errors = rig.device().ecc_errors
    assert errors["uncorrected", "aggregate"] == 7
    assert errors["corrected", "volatile"] == 0


def test_slower_numbers_are_repeated_between_their_readings(rig: Rig) -> None:
    rig.driver.set(0, persistence_mode=1, temperature=40)
    rig.read()
    rig.driver.set(0, persistence_mode=0, temperature=50)
    device = rig.tick(1, FAST).devices[0]
    assert device.temperature_celsius["gpu"] == 50
    assert own(device).persistence_mode == 1
    assert own(rig.tick(60, frozenset({Tier.FAST, Tier.SLOW})).devices[0]).persistence_mode == 0


def test_margins_may_be_negative(rig: Rig) -> None:
    rig.driver.set(0, tlimit_shutdown=-8, temperature_margin=-3)
    device = rig.device()
    assert device.temperature_margin_threshold_celsius["shutdown"] == -8
    assert device.temperature_margin_celsius == -3


def test_unknown_performance_state_is_absent(rig: Rig) -> None:
    rig.driver.set(0, pstate=32)
    assert rig.device().performance_state is ABSENT


@pytest.mark.parametrize("missing", ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"])
def test_older_names_of_a_call_are_tried(rig: Rig, missing: str) -> None:
    rig.driver.fail(missing, error="FUNCTION_NOT_FOUND")
    rig.driver.set(0, temperature=44, reasons=["sw_power_cap"])
    device = rig.device()
    assert device.temperature_celsius["gpu"] == 44
    assert own(device).throttle_mask == 4


FABRIC = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")


@pytest.mark.parametrize("missing", [(), FABRIC[:1]])
def test_a_gpu_in_a_fabric(rig: Rig, missing: tuple[str, ...]) -> None:
    for function in missing:
        rig.driver.fail(function, error="FUNCTION_NOT_FOUND")
    rig.driver.set(0, fabric_state=3, fabric_status=0, fabric_clique=32766, fabric_cluster="0123456789abcdef")
    device = rig.device()
    assert (own(device).fabric_state, own(device).fabric_status, own(device).fabric_clique) == (3, 0, 32766)
    assert own(device).fabric_cluster == "30313233-3435-3637-3839-616263646566"


def test_an_unfinished_fabric_registration_has_only_its_state(rig: Rig) -> None:
    rig.driver.set(0, fabric_state=2, fabric_status=0, fabric_clique=0)
    device = rig.device()
    assert own(device).fabric_state == 2
    assert {own(device).fabric_status, own(device).fabric_clique, own(device).fabric_cluster} == {ABSENT}


def test_cards_without_a_fabric(rig: Rig) -> None:
    rig.driver.gpus(1, model="RTX 4090")
    device = rig.device()
    assert {own(device).fabric_state, own(device).fabric_status, own(device).fabric_clique} == {ABSENT}
    assert not device.platform


def test_its_place_in_a_rack(rig: Rig) -> None:
    assert rig.device().platform == {"slot": "0", "tray": "0", "host": "1", "module": "7"}
    rig.driver.set(0, chassis="1821325191344", platform_slot=25, platform_tray=200)
    rig.close()
    place = {"chassis": "1821325191344", "slot": "25", "tray": "200", "host": "1", "module": "7"}
    assert rig.device().platform == place


def test_video_encoding(rig: Rig) -> None:
    rig.driver.set(0, encoder_sessions=3, encoder_fps=60, encoder_latency_us=1250)
    device = rig.device()
    assert (device.encoder_sessions, device.encoder_frames_per_second) == (3, 60)
    assert device.encoder_latency_seconds == 0.00125


def test_a_binding_that_is_too_old_for_a_structure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    for structure in ("c_nvmlPlatformInfo_v2_t", "nvmlPciInfoExt_v1_t", "c_nvmlGpuFabricInfo_v2_t"):
        monkeypatch.delattr(pynvml, structure)
    reading = rig.read()
    device = reading.devices[0]
    assert not device.platform
    assert device.pci_ids.keys() == {"device", "sub_device"}
    assert own(device).fabric_state == 3, "the older call needs no version"
    assert reading.failures == {}


def test_every_recovery_action_is_passed_on_and_documented(rig: Rig) -> None:
    import pynvml

    from gpuscope.agent.families.native.table import GPU_METRICS

    names = [name for name in vars(pynvml) if name.startswith("NVML_GPU_RECOVERY_ACTION_")]
    actions = sorted(getattr(pynvml, name) for name in names)
    assert actions == list(range(8)), "a new one? say in the catalogue what it means"
    (metric,) = [metric for metric in GPU_METRICS if metric.name.endswith("recovery_action")]
    for action in actions:
        rig.driver.set(0, recovery_action=action)
        assert own(rig.device()).recovery_action == action
        assert f" {action} " in metric.help
