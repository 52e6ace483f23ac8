"""A sysfs with InfiniBand and RoCE adapters, GPUs and the PCIe switches between them, built in a folder.

Symbolic links are relative, as the kernel's are, so that the tree can be read at any path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

COUNTERS = {
    "VL15_dropped": "0",
    "excessive_buffer_overrun_errors": "15",
    "link_downed": "255",
    "link_error_recovery": "3",
    "local_link_integrity_errors": "0",
    "multicast_rcv_packets": "93",
    "multicast_xmit_packets": "16",
    "port_rcv_constraint_errors": "0",
    "port_rcv_data": "205128687774249",
    "port_rcv_errors": "2",
    "port_rcv_packets": "240037171331",
    "port_rcv_remote_physical_errors": "0",
    "port_rcv_switch_relay_errors": "2",
    "port_xmit_constraint_errors": "0",
    "port_xmit_data": "205143497464492",
    "port_xmit_discards": "65535",
    "port_xmit_packets": "242071897216",
    "port_xmit_wait": "4294967295",
    "symbol_error": "7",
    "unicast_rcv_packets": "240037171331",
    "unicast_xmit_packets": "242071897216",
}
"""Of a port whose counters have stopped: 15, 255, 65535 and 4294967295 are maxima."""
QUIET = {**COUNTERS, "excessive_buffer_overrun_errors": "0", "link_downed": "1", "port_xmit_discards": "9"} | {
    "port_xmit_wait": "12345"
}
HW_COUNTERS = {
    "duplicate_request": "1",
    "implied_nak_seq_err": "2",
    "lifespan": "10",
    "local_ack_timeout_err": "131",
    "np_cnp_sent": "4",
    "np_ecn_marked_roce_packets": "5",
    "out_of_buffer": "77",
    "out_of_sequence": "6",
    "packet_seq_err": "7",
    "req_cqe_error": "8",
    "req_cqe_flush_error": "9",
    "req_remote_access_errors": "10",
    "req_remote_invalid_request": "11",
    "resp_cqe_error": "12",
    "resp_cqe_flush_error": "13",
    "resp_local_length_error": "14",
    "resp_remote_access_errors": "15",
    "rnr_nak_retry_err": "16",
    "roce_adp_retrans": "17",
    "roce_adp_retrans_to": "18",
    "roce_slow_restart": "19",
    "roce_slow_restart_cnps": "20",
    "roce_slow_restart_trans": "21",
    "rp_cnp_handled": "22",
    "rp_cnp_ignored": "23",
    "rx_atomic_requests": "24",
    "rx_dct_connect": "25",
    "rx_icrc_encapsulated": "26",
    "rx_read_requests": "27",
    "rx_write_requests": "28446744073709551",
}
LEGACY_COUNTERS = {
    "port_multicast_rcv_packets": "1",
    "port_multicast_xmit_packets": "2",
    "port_rcv_data_64": "3",
    "port_rcv_packets_64": "4",
    "port_unicast_rcv_packets": "5",
    "port_unicast_xmit_packets": "6",
    "port_xmit_data_64": "7",
    "port_xmit_packets_64": "8",
}
AER = "Receiver Error 2\nBad TLP 0\n{total} {count}\n"


@dataclass(frozen=True)
class SysTree:
    folder: Path

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def write_all(self, folder: str, values: Mapping[str, str]) -> None:
        for name, text in values.items():
            self.write(f"{folder}/{name}", text)

    def add_pci(self, path: str, kind: str, *, numa_node: int = -1, correctable: int | None = 0) -> None:
        """`path` below `devices`: `pci0000:3a/0000:3a:00.0/0000:3b:00.0`. Its bridges are made too."""
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            folder = "devices/" + "/".join(parts[:depth])
            self.write(f"{folder}/class", kind if depth == len(parts) else "0x060400")
            self.write(f"{folder}/numa_node", str(numa_node))
            self.write_all(folder, {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"})
            self.write_all(folder, {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16"})
            if correctable is not None:
                count = correctable if depth == len(parts) else 100 + depth
                self.write(f"{folder}/aer_dev_correctable", AER.format(total="TOTAL_ERR_COR", count=count))
                self.write(f"{folder}/aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 0")
                self.write(f"{folder}/aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 1")
            self._link(f"bus/pci/devices/{parts[depth - 1]}", folder)

    def add_gpu(self, path: str, *, numa_node: int = -1) -> None:
        self.add_pci(path, "0x030200", numa_node=numa_node)

    def add_adapter(
        self,
        name: str,
        path: str,
        *,
        state: str = "4: ACTIVE",
        phys_state: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        link_layer: str = "InfiniBand",
        interface: str = "",
        counters: Mapping[str, str] = COUNTERS,
        hw_counters: Mapping[str, str] = HW_COUNTERS,
        numa_node: int = -1,
    ) -> None:
        self.add_pci(path, "0x020700", numa_node=numa_node, correctable=3)
        folder = f"devices/{path}/infiniband/{name}"
        self.write_all(
            folder,
            {
                "board_id": "MT_0000000838",
                "fw_ver": "28.41.1000",
                "hca_type": "MT4129",
                "node_guid": "e09d:7303:00dd:1234",
            },
        )
        self._link(f"{folder}/device", f"devices/{path}")
        self._link(f"class/infiniband/{name}", folder)
        port = f"{folder}/ports/1"
        self.write_all(port, {"state": state, "phys_state": phys_state, "rate": rate, "link_layer": link_layer})
        self.write_all(f"{port}/counters", counters)
        self.write_all(f"{port}/hw_counters", hw_counters)
        if interface:
            self.write(f"{port}/gid_attrs/ndevs/0", interface)
            self.write(f"class/net/{interface}/carrier_down_count", "4")

    def port(self, adapter: str) -> str:
        """Of a port's folder, for `write`."""
        return f"class/infiniband/{adapter}/ports/1"

    def _link(self, path: str, target: str) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(os.path.relpath(self.folder / target, place.parent))


def eight_rails(folder: Path) -> SysTree:
    """A server as those with eight GPUs are: a switch for each GPU and its adapter, and one for storage."""
    tree = SysTree(folder)
    for number in range(8):
        root, numa = f"pci0000:{0x10 + 0x10 * number:02x}", number // 4
        bus = 0x10 + 0x10 * number
        switch = f"{root}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.add_gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", numa_node=numa)
        tree.add_adapter(
            f"mlx5_{number}",
            f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0",
            numa_node=numa,
            counters=COUNTERS if number == 0 else QUIET,
        )
    tree.add_adapter(
        "mlx5_storage",
        "pci0000:a0/0000:a0:01.0/0000:a1:00.0",
        numa_node=0,
        rate="100 Gb/sec (4X EDR)",
        link_layer="Ethernet",
        interface="eth7",
        counters=QUIET,
    )
    return tree
