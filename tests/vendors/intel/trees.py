"""Machines with Intel cards as the kernel shows them: `/sys` and `/proc` in a folder, made by hand.

One card of each family: Arc A770 with i915, B580 with xe, Max 1550 with two tiles, Flex 170, a processor's GPU.
Nothing here was recorded: names and formats are those of the kernel's source and its ABI documents. The numbers
are chosen so that each has its own value: a test that confuses two of them fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vendors.amd.trees import AmdMachine, write, write_link

GIB = 1 << 30
ARC_A770 = 0x56A0
ARC_B580 = 0xE20B
MAX_1550 = 0x0BD5
FLEX_170 = 0x56C0
UHD_770 = 0x4680

XE_REASONS = ("pl1", "pl2", "pl4", "thermal", "prochot", "ratl", "vr_thermalert", "vr_tdc")
Files = Mapping[str, str | int]


@dataclass
class TreeCard:
    """A card's folder. `write` changes a file, `remove` takes it away."""

    machine: IntelMachine
    address: str
    folder: Path
    number: int
    """N of cardN."""
    driver: str

    def write(self, name: str, content: str | int) -> None:
        write(self.folder / name, content)

    def remove(self, name: str) -> None:
        path = self.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def unplug(self) -> None:
        """The card leaves the PCI bus."""
        (self.machine.sys / "class/drm" / f"card{self.number}").unlink()
        (self.machine.sys / "class/drm" / f"renderD{128 + self.number}").unlink()
        (self.machine.sys / "bus/pci/devices" / self.address).unlink()
        shutil.rmtree(self.folder)


class IntelMachine(AmdMachine):
    """Processes are as on a machine with AMD's cards."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.intel: list[TreeCard] = []

    def add_intel(
        self, address: str, device: int, driver: str, files: Files, *, bridges: Sequence[str] = (),
        kind: str = "0x030000",
    ) -> TreeCard:  # fmt: skip
        """`bridges` are the card's own, the highest first; above them is a root port, which is Intel's too."""
        number = len(self.cards) + len(self.intel)
        path = self.sys / "devices/pci0000:00"
        if address != "0000:00:02.0":
            path = path / f"0000:00:{number + 1:02x}.0"
            self._add_intel_function(path, 0x460D, "0x060400")
            write_link(path, "16.0 GT/s PCIe", 16, "32.0 GT/s PCIe", 16)
        for place, bridge in enumerate(bridges):
            path = path / bridge
            self._add_intel_function(path, 0x4FA0 + place, "0x060400")
            write_link(path, "16.0 GT/s PCIe", 8, "16.0 GT/s PCIe", 16)
        path = path / address
        self._add_intel_function(path, device, kind)
        if address != "0000:00:02.0":
            # What cards behind their own switch say about the link of the GPU itself.
            slow = bool(bridges)
            speed, width = ("2.5 GT/s PCIe", 1) if slow else ("32.0 GT/s PCIe", 16)
            write_link(path, speed, width, speed, width)
        (self.sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(self.sys / "bus/pci/drivers" / driver)
        (self.sys / "bus/pci/devices" / address).symlink_to(path)
        for name in (f"card{number}", f"renderD{128 + number}"):
            (path / "drm" / name).mkdir(parents=True)
            (path / "drm" / name / "device").symlink_to(path)
            (self.sys / "class/drm" / name).symlink_to(path / "drm" / name)
        card = TreeCard(self, address, path, number, driver)
        for name, content in files.items():
            card.write(name.replace("cardN", f"card{number}"), content)
        self.intel.append(card)
        return card

    def _add_intel_function(self, path: Path, device: int, kind: str) -> None:
        write(path / "vendor", "0x8086\n")
        write(path / "device", f"0x{device:04x}\n")
        write(path / "subsystem_vendor", "0x8086\n")
        write(path / "subsystem_device", "0x1020\n")
        write(path / "class", f"{kind}\n")
        write(path / "numa_node", "-1\n")
        write(path / "local_cpus", "0000ffff\n")

    def add_client(self, pid: int, fd: int, card: TreeCard, client: int, **lines: str) -> None:
        """An open file of `/dev/dri`; `lines` are further keys, with `_` for `-` and `__` for `_`."""
        folder = self.proc / str(pid)
        if not folder.exists():
            self.add_process(pid)
        link = folder / "fd" / str(fd)
        link.unlink(missing_ok=True)
        link.symlink_to(f"/dev/dri/renderD{128 + card.number}")
        text = "pos:\t0\nflags:\t0100002\nmnt_id:\t26\nino:\t685\n"
        text += f"drm-driver:\t{card.driver}\ndrm-client-id:\t{client}\ndrm-pdev:\t{card.address}\n"
        text += "".join(f"{key.replace('_', '-')}:\t{value}\n" for key, value in lines.items())
        write(folder / "fdinfo" / str(fd), text)


def xe_part(folder: str, actual: int, highest: int, **reasons: int) -> dict[str, str | int]:
    files: dict[str, str | int] = {
        f"{folder}/freq0/act_freq": actual,
        f"{folder}/freq0/cur_freq": actual + 50,
        f"{folder}/freq0/rp0_freq": highest,
        f"{folder}/freq0/max_freq": highest - 100,
        f"{folder}/freq0/min_freq": 400,
        f"{folder}/freq0/throttle/status": int(any(reasons.values())),
    }
    return files | {f"{folder}/freq0/throttle/reason_{name}": reasons.get(name, 0) for name in XE_REASONS}


def add_b580(machine: IntelMachine, address: str = "0000:03:00.0") -> TreeCard:
    """With xe of kernel 6.16, behind its own switch; it is held back by its power limit."""
    hwmon = "hwmon/hwmon5"
    return machine.add_intel(address, ARC_B580, "xe", {
        "power/runtime_status": "active\n",
        **xe_part("tile0/gt0", 2400, 2850, pl1=1),
        **xe_part("tile0/gt1", 1200, 1500),
        f"{hwmon}/name": "xe\n",
        f"{hwmon}/energy1_input": 5_000_000_000,
        f"{hwmon}/energy1_label": "card\n",
        f"{hwmon}/energy2_input": 4_000_000_000,
        f"{hwmon}/energy2_label": "pkg\n",
        f"{hwmon}/power1_max": 190_000_000,
        f"{hwmon}/power1_rated_max": 200_000_000,
        f"{hwmon}/power1_cap": 230_000_000,
        f"{hwmon}/power2_max": 150_000_000,
        f"{hwmon}/temp2_input": 62000,
        f"{hwmon}/temp2_label": "pkg\n",
        f"{hwmon}/temp3_input": 71000,
        f"{hwmon}/temp3_label": "vram\n",
        f"{hwmon}/temp4_input": 99000,
        f"{hwmon}/temp4_label": "mctrl\n",
        f"{hwmon}/fan1_input": 1310,
        f"{hwmon}/fan2_input": 1320,
    }, bridges=("0000:01:00.0", "0000:02:01.0"))  # fmt: skip


def add_a770(machine: IntelMachine, address: str = "0000:0b:00.0") -> TreeCard:
    """With i915 of kernel 6.14: one sensor of each kind, and a second folder of sensors for its only part."""
    hwmon, gt = "hwmon/hwmon3", "drm/cardN/gt/gt0"
    return machine.add_intel(address, ARC_A770, "i915", {
        "power/runtime_status": "active\n",
        "drm/cardN/gt_act_freq_mhz": 2000,
        "drm/cardN/gt_RP0_freq_mhz": 2400,
        f"{gt}/rps_act_freq_mhz": 2050,
        f"{gt}/rps_cur_freq_mhz": 2100,
        f"{gt}/rps_RP0_freq_mhz": 2400,
        f"{gt}/throttle_reason_status": 1,
        **{f"{gt}/throttle_reason_{name}": int(name == "thermal") for name in XE_REASONS},
        "hwmon/hwmon2/name": "i915_gt0\n",
        "hwmon/hwmon2/energy1_input": 11_000_000,
        f"{hwmon}/name": "i915\n",
        f"{hwmon}/energy1_input": 7_000_000_000,
        f"{hwmon}/power1_max": 0,
        f"{hwmon}/power1_rated_max": 190_000_000,
        f"{hwmon}/temp1_input": 55000,
        f"{hwmon}/fan1_input": 900,
        f"{hwmon}/in0_input": 850,
    }, bridges=("0000:09:00.0", "0000:0a:01.0"))  # fmt: skip


def add_max1550(machine: IntelMachine, address: str = "0000:4d:00.0") -> TreeCard:
    """With xe and Intel's own package: two tiles without a video part, sizes of their memory."""
    hwmon = "hwmon/hwmon7"
    return machine.add_intel(address, MAX_1550, "xe", {
        "power/runtime_status": "active\n",
        **xe_part("tile0/gt0", 1600, 1600),
        **xe_part("tile1/gt1", 1400, 1600, vr_tdc=1),
        "tile0/memory/freq0/max_freq": 3200,
        "tile0/physical_vram_size_bytes": 64 * GIB,
        "tile1/physical_vram_size_bytes": 64 * GIB,
        f"{hwmon}/name": "xe\n",
        f"{hwmon}/energy1_input": 9_000_000_000,
        f"{hwmon}/power1_max": 600_000_000,
        f"{hwmon}/power1_rated_max": 600_000_000,
    }, kind="0x038000")  # fmt: skip


def add_flex170(machine: IntelMachine, address: str = "0000:6a:00.0") -> TreeCard:
    """With i915 of kernel 5.15 and Intel's own package: no parts, no sensors, the size of its memory."""
    return machine.add_intel(address, FLEX_170, "i915", {
        "drm/cardN/gt_act_freq_mhz": 1950,
        "drm/cardN/gt_RP0_freq_mhz": 2050,
        "drm/cardN/lmem_total_bytes": 14 * GIB,
    }, kind="0x038000")  # fmt: skip


def add_integrated(machine: IntelMachine) -> TreeCard:
    """The GPU of a processor: no sensors, no link."""
    gt = "drm/cardN/gt/gt0"
    return machine.add_intel("0000:00:02.0", UHD_770, "i915", {
        "power/runtime_status": "active\n",
        f"{gt}/rps_act_freq_mhz": 0,
        f"{gt}/rps_RP0_freq_mhz": 1550,
    })  # fmt: skip
