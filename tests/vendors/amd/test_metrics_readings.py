"""From raw numbers to readings in base units, and throttling from bits and from counted cycles."""

from __future__ import annotations

import pytest

from gpuscope.model.readings import ABSENT
from gpuscope.model.vendor import vendors
from gpuscope.vendors.amd.amdgpu.gpu_metrics import GpuMetrics, decode_gpu_metrics
from gpuscope.vendors.amd.amdgpu.metrics_layouts import Revision
from gpuscope.vendors.amd.amdgpu.metrics_readings import fast_readings, link_readings, partition_activity
from gpuscope.vendors.amd.amdgpu.throttle_times import REASONS, ThrottleTimes
from tests.vendors.amd.families import MI250_METRICS, MI300X_METRICS, MI300X_PARTITION, RX7900_METRICS
from tests.vendors.amd.trees import Values, encode_attributes, encode_metrics


def metrics(revision: Revision, values: Values, *parts: Values) -> GpuMetrics:
    return decode_gpu_metrics(encode_metrics(revision, values, parts))


@pytest.mark.parametrize("revision", [(1, 6), (1, 7), (1, 8)])
def test_readings_of_the_mi300_family(revision: Revision) -> None:
    fields = fast_readings(metrics(revision, MI300X_METRICS, MI300X_PARTITION), is_instinct=False)
    assert fields == {
        "utilization_ratio": 0.87,
        "memory_utilization_ratio": 0.41,
        "decoder_utilization_ratio": 0.12,
        "jpeg_utilization_ratio": 0.07,
        "power_watts": 613.0,
        "energy_joules": 1_000_000.0,
        "temperature_celsius": {"gpu": 61.0, "junction": 61.0, "memory": 55.0},
        "clock_hertz": {
            "graphics": 2.0e9, "memory": 1.3e9, "soc": 1.2e9, "video": 29e6, "data": 22e6,
        },
    }  # fmt: skip


def test_readings_by_attribute() -> None:
    data = encode_attributes(
        {
            "average_gfx_activity": 55, "curr_socket_power": 900, "energy_accumulator": 65536 * 8,
            "temperature_hotspot": 70, "temperature_hbm": [60, 61], "current_uclk": [2000, 1000],
            "vcn_busy": [3, 9], "xgmi_read_data_acc": [5], "xgmi_link_status": [1],
        }
    )  # fmt: skip
    decoded = decode_gpu_metrics(data)
    fields = fast_readings(decoded, is_instinct=False)
    assert (fields["utilization_ratio"], fields["power_watts"], fields["energy_joules"]) == (0.55, 900.0, 8.0)
    assert fields["temperature_celsius"] == {"gpu": 70.0, "junction": 70.0, "hbm_0": 60.0, "hbm_1": 61.0}
    assert fields["clock_hertz"] == {"memory": 1.5e9}
    assert fields["decoder_utilization_ratio"] == 0.09
    assert link_readings(decoded)["link_bytes"] == {"rx": 5 * 1024.0, "tx": 0}


def test_readings_of_an_mi250() -> None:
    fields = fast_readings(metrics((1, 3), MI250_METRICS), is_instinct=True)
    assert fields["power_watts"] == 280.0
    assert fields["energy_joules"] == 5000.0
    assert fields["temperature_celsius"] == {
        "gpu": 45.0, "junction": 52.0, "memory": 50.0, "hbm_0": 50.0, "hbm_1": 51.0, "hbm_2": 49.0,
    }  # fmt: skip


def test_the_energy_of_radeon_cards_has_another_unit_and_is_left_out() -> None:
    assert "energy_joules" not in fast_readings(metrics((1, 3), RX7900_METRICS), is_instinct=False)


def test_a_counter_that_does_not_count_is_absent() -> None:
    still = {**MI300X_METRICS, "energy_accumulator": 0}
    assert "energy_joules" not in fast_readings(metrics((1, 6), still), is_instinct=True)


def test_an_idle_card_has_zeros_and_an_unknown_one_nothing() -> None:
    idle = fast_readings(
        metrics((1, 3), {"average_gfx_activity": 0, "average_socket_power": 0}), is_instinct=False
    )
    assert (idle["utilization_ratio"], idle["power_watts"]) == (0.0, 0.0)
    unknown = fast_readings(metrics((1, 3), {}), is_instinct=True)
    assert unknown == {"clock_hertz": {}, "temperature_celsius": {}}


def test_more_than_a_hundred_percent_is_all() -> None:
    fields = fast_readings(metrics((1, 3), {"average_gfx_activity": 101}), is_instinct=False)
    assert fields["utilization_ratio"] == 1.0


@pytest.mark.parametrize("revision", [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (3, 0)])
def test_of_a_processor_only_clocks_are_taken(revision: Revision) -> None:
    values = {"temperature_gfx": 4900, "average_gfx_activity": 2400, "average_gfxclk_frequency": 1100}
    fields = fast_readings(metrics(revision, values), is_instinct=False)
    assert fields == {"clock_hertz": {"graphics": 1.1e9}}


def test_links_are_counted_each_and_together() -> None:
    fields = link_readings(metrics((1, 6), MI300X_METRICS))
    assert fields["link_bytes"] == {"rx": 28000 * 1024.0, "tx": 2800 * 1024.0}
    assert fields["link_bytes_each"]["6", "tx"] == 700 * 1024.0
    assert ("7", "rx") not in fields["link_bytes_each"]
    assert fields["pcie_replays"] == 3.0
    assert "link_up" not in fields


def test_links_that_the_card_does_not_have_are_left_out() -> None:
    values = {**MI300X_METRICS, "xgmi_link_status": [1, 0, 2, 2, 2, 2, 2, 2]}
    fields = link_readings(metrics((1, 8), values))
    assert fields["link_up"] == {"0": 1.0, "1": 0.0}
    assert {link for link, _ in fields["link_bytes_each"]} == {"0", "1"}


def test_a_card_without_links_has_none() -> None:
    assert link_readings(metrics((1, 3), RX7900_METRICS)) == {}


def test_the_activity_of_a_partition_is_that_of_its_dies() -> None:
    split = metrics((1, 6), {"num_partition": 2}, {"gfx_busy_inst": [40, 60]}, {})
    assert [partition_activity(part) for part in split.partitions] == [0.5, ABSENT]


def test_every_reason_for_low_clocks_has_a_row() -> None:
    rows = vendors()["amd"].throttles
    assert [row.reason for row in rows if row.hinders] == list(REASONS[:5])
    assert {row.reason for row in rows} == set(REASONS)


def test_bits_that_are_the_same_on_all_cards() -> None:
    throttling = ThrottleTimes().advance(metrics((1, 3), MI250_METRICS), 0.0)
    assert throttling.reasons == {
        "ppt": 1.0, "tdc": 0.0, "socket_thermal": 0.0, "memory_thermal": 1.0, "vr_thermal": 0.0,
        "liquid_thermal": 0.0, "processor_hot": 0.0, "reliability": 0.0,
    }  # fmt: skip
    assert throttling.seconds == {}


def test_bits_of_the_first_mi300_drivers() -> None:
    throttling = ThrottleTimes().advance(metrics((1, 5), {"throttle_status": 0b00110}), 0.0)
    assert throttling.reasons == {
        "processor_hot": 0.0, "ppt": 1.0, "socket_thermal": 1.0, "vr_thermal": 0.0, "memory_thermal": 0.0,
    }  # fmt: skip


def test_bits_that_differ_by_card_say_nothing() -> None:
    times = ThrottleTimes()
    assert times.advance(metrics((1, 1), {"throttle_status": 0xFF}), 0.0).reasons == {}
    assert times.advance(metrics((1, 6), {}), 1.0).reasons == {}


def cycles(all_of_them: int, **counts: int) -> GpuMetrics:
    known = dict.fromkeys(
        ("prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc", "vr_thm_residency_acc",
         "hbm_thm_residency_acc"), 0,
    )  # fmt: skip
    return metrics((1, 6), {"accumulation_counter": all_of_them, **known, **counts})


def test_counted_cycles_become_seconds() -> None:
    times = ThrottleTimes()
    first = times.advance(cycles(1000, ppt_residency_acc=700), 10.0)
    assert first.reasons == {}
    assert first.seconds["ppt"] == 0.0
    second = times.advance(cycles(3000, ppt_residency_acc=1200), 12.0)
    assert second.reasons == {
        "processor_hot": 0.0, "ppt": 1.0, "socket_thermal": 0.0, "vr_thermal": 0.0, "memory_thermal": 0.0,
    }  # fmt: skip
    assert second.seconds == {
        "processor_hot": 0.0, "ppt": 0.5, "socket_thermal": 0.0, "vr_thermal": 0.0, "memory_thermal": 0.0,
    }  # fmt: skip
    third = times.advance(cycles(4000, ppt_residency_acc=1200), 13.0)
    assert third.reasons["ppt"] == 0.0
    assert third.seconds["ppt"] == 0.5


def test_counters_that_start_again_add_nothing_wrong() -> None:
    times = ThrottleTimes()
    times.advance(cycles((1 << 32) - 500, ppt_residency_acc=(1 << 32) - 101), 0.0)
    wrapped = times.advance(cycles(500, ppt_residency_acc=399), 1.0)
    assert wrapped.seconds["ppt"] == 0.5
    after_reset = times.advance(cycles(100, ppt_residency_acc=10), 2.0)
    assert after_reset.reasons == {}
    assert after_reset.seconds["ppt"] == 0.5


def test_a_processor_counts_without_saying_how_long_a_cycle_is() -> None:
    times = ThrottleTimes()
    times.advance(metrics((3, 0), {"throttle_residency_spl": 10, "throttle_residency_thm_gfx": 0}), 0.0)
    throttling = times.advance(
        metrics((3, 0), {"throttle_residency_spl": 12, "throttle_residency_thm_gfx": 0}), 1.0
    )
    assert throttling.reasons == {"ppt": 1.0, "socket_thermal": 0.0}
    assert throttling.seconds == {}
