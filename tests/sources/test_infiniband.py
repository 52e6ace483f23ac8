"""The source `infiniband` on sysfs trees: states, counters that stopped, links that go down, rails, limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuscope.agent.families import load_family
from gpuscope.agent.families.native.link_metrics import gpu_slots, rails_of_gpus
from gpuscope.agent.sources.infiniband import SOURCE, InfinibandSource
from gpuscope.agent.sources.infiniband.adapter_ports import MAX_COUNTERS, MAX_DEVICES
from gpuscope.agent.sources.infiniband.pci import parse_aer_total
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.readings.host import InfinibandPort, InfinibandReading
from gpuscope.model.source import Tier
from tests.fakes import gpu
from tests.sources.infiniband_tree import COUNTERS, QUIET, SysTree, eight_rails

SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path)


def source_of(tree: SysTree) -> InfinibandSource:
    return InfinibandSource(Settings(path_sysfs=str(tree.folder)))


def read(source: InfinibandSource, *, slow: bool = True) -> InfinibandReading:
    reading = source.read(frozenset(Tier) if slow else frozenset({Tier.FAST, Tier.MEDIUM}))
    assert reading.infiniband is not ABSENT
    return reading.infiniband


def only_port(source: InfinibandSource) -> InfinibandPort:
    (device,) = read(source).devices
    (port,) = device.ports
    return port


def native_lines(reading: InfinibandReading, *gpus: str) -> set[str]:
    """The lines of the native family about links, for GPUs at these PCI addresses."""
    devices = tuple(gpu(number, pci_bus_id=address) for number, address in enumerate(gpus))
    snapshot = Snapshot(node="n", taken_at=0.0, devices=devices, infiniband=reading)
    text = encode_text(load_family("native").build(Settings()).to_families(snapshot)).decode()
    return {line for line in text.splitlines() if "infiniband" in line or "aer" in line}


def test_a_port_has_state_rate_and_counters(tree: SysTree) -> None:
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:00.0")
    reading = read(source_of(tree))
    (device,) = reading.devices
    (port,) = device.ports
    assert (device.board_id, device.firmware_version, device.hca_type) == (
        "MT_0000000838",
        "28.41.1000",
        "MT4129",
    )
    assert (port.port, port.state, port.physical_state, port.link_layer) == ("1", 4, 5, "InfiniBand")
    assert port.rate_bytes_per_second == 50e9
    assert port.counters["port_rcv_data"] == int(COUNTERS["port_rcv_data"])
    assert port.hw_counters["out_of_buffer"] == 77


def test_counters_at_their_maximum_are_named(tree: SysTree) -> None:
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:00.0")
    tree.add_adapter("mlx5_1", f"{SWITCH}/0000:13:00.0", counters=QUIET)
    lines = native_lines(read(source_of(tree)))
    at = 'device="mlx5_0",port="1"'
    for counter in ("excessive_buffer_overrun_errors", "link_downed", "port_xmit_discards", "port_xmit_wait"):
        assert f'gpuscope_infiniband_counter_saturated{{{at},counter="{counter}"}} 1' in lines
    assert f"gpuscope_infiniband_saturated_counters{{{at}}} 4" in lines
    assert 'gpuscope_infiniband_saturated_counters{device="mlx5_1",port="1"} 0' in lines
    assert not any("counter_saturated{" in line and "mlx5_1" in line for line in lines)


def test_large_traffic_counters_do_not_saturate(tree: SysTree) -> None:
    counters = {"port_rcv_data": str(2**32 - 1), "port_xmit_data": str(2**64 - 1), "unicast_rcv_packets": "255"}
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:00.0", counters=counters)
    assert only_port(source_of(tree)).saturated == ()


def test_a_port_that_is_down_has_no_rate(tree: SysTree) -> None:
    tree.add_adapter(
        "mlx5_0", f"{SWITCH}/0000:12:00.0", state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)"
    )
    tree.add_adapter("mlx5_1", f"{SWITCH}/0000:13:00.0", state="2: INIT")
    lines = native_lines(read(source_of(tree)))
    assert 'gpuscope_infiniband_port_up{device="mlx5_0",port="1"} 0' in lines
    assert 'gpuscope_infiniband_port_up{device="mlx5_1",port="1"} 0' in lines
    assert not any(line.startswith("gpuscope_infiniband_port_rate") for line in lines)


def test_what_an_adapter_does_not_have_is_absent(tree: SysTree) -> None:
    counters = {"symbol_error": "N/A (no PMA)", "port_rcv_errors": "-1", "link_downed": "0"}
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:00.0", counters=counters, rate="unknown", state="ACTIVE")
    (tree.folder / tree.port("mlx5_0") / "counters/refused").mkdir()  # a read of it fails, as with EINVAL
    (tree.folder / tree.port("mlx5_0") / "phys_state").unlink()
    port = only_port(source_of(tree))
    assert port.counters == {"link_downed": 0}
    assert port.state is port.physical_state is port.rate_bytes_per_second is ABSENT
    lines = native_lines(read(source_of(tree)))
    assert not any(line.startswith("gpuscope_infiniband_port_up") for line in lines)


def test_a_machine_without_adapters_has_none_and_no_failure(tree: SysTree) -> None:
    assert source_of(tree).read(frozenset(Tier)).failures == {}
    assert read(source_of(tree)) == InfinibandReading()


def test_a_software_adapter_has_no_slot(tree: SysTree) -> None:
    tree.write("devices/virtual/infiniband/rxe0/ports/1/state", "4: ACTIVE")
    (tree.folder / "class/infiniband").mkdir(parents=True)
    (tree.folder / "class/infiniband/rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    (device,) = read(source_of(tree)).devices
    assert device.pci is ABSENT
    assert device.ports[0].state == 4


def test_the_source_sees_a_link_go_down_and_counts_what_the_kernel_counted(tree: SysTree) -> None:
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:00.0", counters={"link_downed": "250"})
    source, state = source_of(tree), f"{tree.port('mlx5_0')}/state"
    downed = f"{tree.port('mlx5_0')}/counters/link_downed"
    assert only_port(source).link_downs == 0, "what was before the agent is not known to be recent"
    tree.write(state, "1: DOWN")
    assert only_port(source).link_downs == 1
    assert only_port(source).link_downs == 1, "it is still the same time"
    tree.write(state, "4: ACTIVE")
    tree.write(downed, "253")
    assert only_port(source).link_downs == 4
    tree.write(downed, "255")
    assert only_port(source).link_downs == 6
    for count in (7, 8):  # the counter has stopped, the agent still sees the link
        tree.write(state, "1: DOWN")
        assert only_port(source).link_downs == count
        tree.write(state, "4: ACTIVE")
        assert only_port(source).link_downs == count
    tree.write(downed, "0")
    assert only_port(source).link_downs == 8, "somebody cleared the counter"
    (tree.folder / state).unlink()
    assert only_port(source).link_downs == 8, "a state that cannot be read is not down"


def test_the_carrier_of_a_roce_port_counts(tree: SysTree) -> None:
    tree.add_adapter(
        "mlx5_0",
        f"{SWITCH}/0000:12:00.0",
        link_layer="Ethernet",
        interface="eth0",
        counters={"link_downed": "0"},
    )
    source = source_of(tree)
    assert (only_port(source).interface, only_port(source).link_downs) == ("eth0", 0)
    tree.write("class/net/eth0/carrier_down_count", "7")
    assert only_port(source).link_downs == 3
    tree.write(f"{tree.port('mlx5_0')}/gid_attrs/ndevs/0", "../../eth0")
    assert only_port(source).interface is ABSENT


def test_an_adapter_that_comes_is_found_and_one_that_goes_is_forgotten(tree: SysTree) -> None:
    source = source_of(tree)
    read(source)
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:00.0")
    assert read(source, slow=False).devices == ()
    assert [device.name for device in read(source).devices] == ["mlx5_0"]
    (tree.folder / "class/infiniband/mlx5_0").unlink()
    assert read(source, slow=False).devices[0].ports == ()
    assert read(source).devices == ()


def test_each_gpu_has_the_adapter_behind_its_switch(tmp_path: Path) -> None:
    reading = read(source_of(eight_rails(tmp_path)))
    addresses = [f"00000000:{0x13 + 0x10 * number:02X}:00.0" for number in range(8)]
    lines = native_lines(reading, *addresses)
    rails = {line for line in lines if line.startswith("gpuscope_infiniband_rail_info")}
    assert rails == {
        f'gpuscope_infiniband_rail_info{{device="mlx5_{number}",gpu="{number}",uuid="GPU-{number}"}} 1'
        for number in range(8)
    }


def rails(reading: InfinibandReading, *addresses: str) -> list[tuple[str, ...]]:
    gpus = [gpu(number, pci_bus_id=address) for number, address in enumerate(addresses)]
    by_gpu = rails_of_gpus(reading, gpu_slots(reading, gpus))
    return [by_gpu.get(one.uuid, ()) for one in gpus]


def test_without_a_switch_the_numa_node_decides(tree: SysTree) -> None:
    for number in range(2):
        tree.add_gpu(f"pci0000:0{number}/0000:0{number}:01.0", numa_node=number)
        tree.add_adapter(f"mlx5_{number}", f"pci0000:0{number}/0000:0{number}:02.0", numa_node=number)
    reading = read(source_of(tree))
    assert rails(reading, "0000:00:01.0", "0000:01:01.0") == [("mlx5_0",), ("mlx5_1",)]


def test_a_virtual_machines_flat_bus_tells_nothing(tree: SysTree) -> None:
    tree.add_gpu("pci0000:00/0000:00:05.0")
    tree.add_adapter("mlx5_0", "pci0000:00/0000:00:06.0")
    assert rails(read(source_of(tree)), "0000:00:05.0") == [()]


def test_two_adapters_behind_one_switch_both_feed_its_gpus(tree: SysTree) -> None:
    tree.add_gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0")
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:01.0/0000:14:00.0")
    tree.add_adapter("mlx5_1", f"{SWITCH}/0000:12:01.0/0000:14:00.1")
    tree.add_adapter("mlx5_far", "pci0000:10/0000:10:01.0/0000:18:00.0")
    assert rails(read(source_of(tree)), "0000:13:00.0", "0000:99:00.0") == [("mlx5_0", "mlx5_1"), ()]


def test_pcie_errors_are_counted_at_both_ends(tree: SysTree) -> None:
    tree.add_gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0")
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:12:01.0/0000:14:00.0")
    tree.write(f"devices/{SWITCH}/0000:12:01.0/0000:14:00.0/current_link_width", "8")
    lines = native_lines(read(source_of(tree)), "00000000:13:00.0")
    gpu_labels = 'gpu="0",uuid="GPU-0"'
    name = "gpuscope_gpu_pcie_aer_errors_total"
    assert f'{name}{{{gpu_labels},reporter="device",severity="correctable"}} 0' in lines
    assert f'{name}{{{gpu_labels},reporter="upstream_port",severity="correctable"}} 104' in lines
    assert f'{name}{{{gpu_labels},reporter="device",severity="fatal"}} 1' in lines
    adapter = (
        'gpuscope_infiniband_pcie_aer_errors_total{device="mlx5_0",reporter="device",severity="correctable"}'
    )
    assert f"{adapter} 3" in lines
    assert 'gpuscope_infiniband_pcie_link_width{device="mlx5_0"} 8' in lines
    assert 'gpuscope_infiniband_pcie_link_width_max{device="mlx5_0"} 16' in lines
    assert 'gpuscope_infiniband_pcie_link_generation{device="mlx5_0"} 5' in lines


def test_the_slot_limits_the_link(tree: SysTree) -> None:
    tree.add_adapter("mlx5_0", f"{SWITCH}/0000:14:00.0")
    tree.write_all(f"devices/{SWITCH}", {"max_link_speed": "16.0 GT/s PCIe", "max_link_width": "8"})
    tree.write(f"devices/{SWITCH}/0000:14:00.0/current_link_speed", "Unknown")
    (device,) = read(source_of(tree)).devices
    assert device.pci is not ABSENT
    assert (device.pci.link_generation_max, device.pci.link_width_max) == (4, 8)
    assert device.pci.link_generation is ABSENT


@pytest.mark.parametrize("text", ["", "TOTAL_ERR_COR", "TOTAL_ERR_COR -1", "TOTAL_ERR_COR x", "Bad TLP 3"])
def test_another_format_of_pcie_errors_is_absent(text: str) -> None:
    assert parse_aer_total(text, "TOTAL_ERR_COR") is ABSENT


def test_counters_of_other_drivers_have_a_native_name(tree: SysTree) -> None:
    tree.add_adapter(
        "rdmap0", f"{SWITCH}/0000:12:00.0", counters={}, hw_counters={"rdma_read_bytes": "9", "lifespan": "12"}
    )
    lines = native_lines(read(source_of(tree)))
    counter = 'gpuscope_infiniband_hw_counter_total{device="rdmap0",port="1",counter="rdma_read_bytes"} 9'
    assert counter in lines
    assert not any("lifespan" in line for line in lines)


def test_names_texts_and_numbers_of_adapters_are_bounded(tree: SysTree) -> None:
    for number in range(MAX_DEVICES + 3):
        tree.add_adapter(f"mlx5_{number:03}", f"{SWITCH}/0000:20:{number // 8:02x}.{number % 8}", counters={})
        if number < 3:  # a virtual function is left out first
            physfn = tree.folder / f"devices/{SWITCH}/0000:20:{number // 8:02x}.{number % 8}/physfn"
            physfn.mkdir()
            (physfn / "class").touch()
    tree.write("class/infiniband/mlx5_003/board_id", "x" * 9000)
    hostile = {f"counter_{number}": "1" for number in range(2 * MAX_COUNTERS)} | {'a"}': "1", "y" * 65: "1"}
    tree.write_all(f"{tree.port('mlx5_003')}/hw_counters", hostile)
    result = source_of(tree).read(frozenset(Tier))
    assert result.infiniband is not ABSENT
    assert result.failures == {f"more than {MAX_DEVICES} adapters": 3}
    names = [device.name for device in result.infiniband.devices]
    assert len(names) == MAX_DEVICES
    assert not {"mlx5_000", "mlx5_001", "mlx5_002"} & set(names)
    first = result.infiniband.devices[0]
    assert len(first.board_id) == 64
    assert len(first.ports[0].hw_counters) <= MAX_COUNTERS
    assert all(name.isidentifier() and len(name) <= 64 for name in first.ports[0].hw_counters)


def test_eight_rails_are_read_with_few_system_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's budget: 1 % of a core; a read every ten seconds opens each counter's file once."""
    source = source_of(eight_rails(tmp_path))
    read(source)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path) or real(path, flags))  # type: ignore[func-returns-value]
    read(source, slow=False)
    assert len(opened) == len(set(opened)) <= 9 * (len(COUNTERS) + 30 + 6)


def test_it_is_read_every_ten_seconds() -> None:
    assert SOURCE.interval_seconds(Settings(interval=1.0)) == 10.0
    assert SOURCE.interval_seconds(Settings(interval=30.0)) == 30.0
