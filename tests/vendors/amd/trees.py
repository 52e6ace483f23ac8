"""Machines with AMD cards as the kernel shows them: `/sys` and `/proc` in a folder, made by hand.

`AmdMachine` writes the files that kernel 6.x has for each family of cards; a test changes single ones.
Nothing here was recorded: names and formats are those of the kernel's source.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.base.settings import Settings
from gpuscope.vendors.amd.amdgpu.gpu_metrics import ATTRIBUTE_IDS
from gpuscope.vendors.amd.amdgpu.metrics_layouts import LAYOUTS, MetricsField, Revision
from tests.fakes import make_settings

GIB = 1 << 30
Values = Mapping[str, int | Sequence[int]]


def encode_metrics(revision: Revision, values: Values, partitions: Sequence[Values] = ()) -> bytes:
    """A file `gpu_metrics`; all bits are set where there is no value."""
    layout = LAYOUTS[revision]
    data = bytearray(b"\xff" * layout.size)
    struct.pack_into("<HBB", data, 0, layout.size, *revision)
    _pack(data, layout.fields, values)
    for fields, part in zip(layout.partitions, partitions, strict=False):
        _pack(data, fields, part)
    return bytes(data)


def _pack(data: bytearray, fields: Mapping[str, MetricsField], values: Values) -> None:
    for name, value in values.items():
        numbers = [value] if isinstance(value, int) else list(value)
        field = fields[name]
        width = field.reader.size // len(field.reader.unpack_from(bytes(field.reader.size)))
        missing = field.reader.size // width - len(numbers)
        field.reader.pack_into(data, field.offset, *numbers, *[field.absent] * missing)


TYPES = "BbHhIiQq"


def encode_attributes(
    values: Values, types: Mapping[str, str] | None = None, units: Mapping[str, int] | None = None
) -> bytes:
    """Revision 1.9: an encoding and the numbers for each attribute."""
    parts = []
    for name, value in values.items():
        numbers = [value] if isinstance(value, int) else list(value)
        parts.append(encode_attribute(ATTRIBUTE_IDS[name], numbers, (types or {}).get(name, "Q"),
                                      (units or {}).get(name, 0)))  # fmt: skip
    body = b"".join(parts)
    return struct.pack("<HBBi", 8 + len(body), 1, 9, len(parts)) + body


def encode_attribute(number: int, values: Sequence[int], kind: str, unit: int = 0) -> bytes:
    encoding = unit << 24 | TYPES.index(kind) << 20 | number << 10 | len(values)
    return struct.pack(f"<Q{len(values)}{kind}", encoding, *values)


@dataclass
class AmdCard:
    """A card's folder. `write` changes a file, `remove` takes it away."""

    machine: AmdMachine
    address: str
    folder: Path
    number: int
    """N of cardN."""

    def write(self, name: str, content: str | bytes | int) -> None:
        write(self.folder / name, content)

    def remove(self, name: str) -> None:
        path = self.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def metrics(self, revision: Revision, values: Values, partitions: Sequence[Values] = ()) -> None:
        self.write("gpu_metrics", encode_metrics(revision, values, partitions))

    def unplug(self) -> None:
        """The card leaves the PCI bus."""
        (self.machine.sys / "class/drm" / f"card{self.number}").unlink()
        (self.machine.sys / "class/drm" / f"renderD{128 + self.number}").unlink()
        (self.machine.sys / "bus/pci/devices" / self.address).unlink()
        shutil.rmtree(self.folder)


class AmdMachine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sys = folder / "sys"
        self.proc = folder / "proc"
        self.root = folder / "root"
        self.cards: list[AmdCard] = []
        self._nodes = 0
        self._gpu_ids: dict[str, list[int]] = {}
        for part in ("class/drm", "bus/pci/devices", "bus/pci/drivers/amdgpu", "devices/platform"):
            (self.sys / part).mkdir(parents=True, exist_ok=True)
        self.proc.mkdir(exist_ok=True)
        write(self.proc / "stat", "btime 1700000000\n")
        write(self.proc / "sys/kernel/osrelease", "6.8.0-45-generic\n")

    def settings(self, **others: object) -> Settings:
        return make_settings(
            path_sysfs=str(self.sys), path_procfs=str(self.proc), path_rootfs=str(self.root), **others
        )

    # Cards

    def add_card(
        self, address: str, device: int, files: Mapping[str, str | bytes | int], parents: Sequence[str] = ()
    ) -> AmdCard:
        """`parents` are the bridges above it, the highest first."""
        number = len(self.cards)
        path = self.sys / "devices/pci0000:00" / f"0000:00:{number + 1:02x}.1"
        write(path / "vendor", "0x1022\n")
        write(path / "class", "0x060400\n")
        write_link(path, "16.0 GT/s PCIe", 16, "32.0 GT/s PCIe", 16)
        for bridge in parents:
            path = path / bridge
            self._add_function(path, 0x1002, 0x1478, "0x060400")
        path = path / address
        self._add_function(path, 0x1002, device, "0x038000")
        self._link(path / "driver", self.sys / "bus/pci/drivers/amdgpu")
        self._link(self.sys / "bus/pci/devices" / address, path)
        for name in (f"card{number}", f"renderD{128 + number}"):
            (path / "drm" / name).mkdir(parents=True)
            self._link(path / "drm" / name / "device", path)
            self._link(self.sys / "class/drm" / name, path / "drm" / name)
        card = AmdCard(self, address, path, number)
        for name, content in files.items():
            card.write(name, content)
        self.cards.append(card)
        return card

    def _add_function(self, path: Path, vendor: int, device: int, kind: str) -> None:
        write(path / "vendor", f"0x{vendor:04x}\n")
        write(path / "device", f"0x{device:04x}\n")
        write(path / "subsystem_vendor", "0x1002\n")
        write(path / "subsystem_device", "0x74a1\n")
        write(path / "revision", "0x00\n")
        write(path / "class", f"{kind}\n")
        write(path / "numa_node", "0\n")
        write(path / "local_cpus", "00000000,0000ffff\n")
        write_link(path, "16.0 GT/s PCIe", 16, "16.0 GT/s PCIe", 16)

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def add_partition_device(self, number: int, render_minor: int) -> Path:
        """A platform device of MI300 cards: `amdgpu_xcp_N`."""
        path = self.sys / "devices/platform" / f"amdgpu_xcp_{number}"
        name = f"renderD{render_minor}"
        (path / "drm" / name).mkdir(parents=True)
        self._link(path / "drm" / name / "device", path)
        self._link(self.sys / "class/drm" / name, path / "drm" / name)
        return path

    # KFD

    def add_cpu_node(self) -> None:
        self._add_node(0, {"cpu_cores_count": 96, "simd_count": 0, "location_id": 0})

    def add_node(self, address: str, gpu_id: int, *, partition: int = 0, **properties: int) -> int:
        """The node of a card, or of one of its partitions. Returns the number of its folder."""
        domain, bus, rest = address.split(":")
        device, function = rest.split(".")
        location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function) | partition << 28
        values = {
            "cpu_cores_count": 0, "simd_count": 1216, "mem_banks_count": 1, "simd_per_cu": 4, "num_xcc": 8,
            "gfx_target_version": 90402, "vendor_id": 0x1002, "device_id": 0x74A1, "location_id": location,
            "domain": int(domain, 16), "drm_render_minor": 128, "hive_id": 0,
        }  # fmt: skip
        return self._add_node(gpu_id, values | properties)

    def _add_node(self, gpu_id: int, properties: Mapping[str, int], memory: int = 192 * GIB) -> int:
        topology = self.sys / "class/kfd/kfd/topology"
        number, self._nodes = self._nodes, self._nodes + 1
        node = topology / "nodes" / str(number)
        write(node / "gpu_id", gpu_id)
        write(node / "name", "ip discovery\n")
        write(node / "properties", "".join(f"{name} {value}\n" for name, value in properties.items()))
        memory = properties.get("memory", memory)
        write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0\n")
        write(topology / "generation_id", self._nodes)
        return number

    def clear_nodes(self) -> None:
        shutil.rmtree(self.sys / "class/kfd/kfd/topology/nodes")
        self._nodes += 100  # numbers of nodes, and the generation, never come again

    def add_kfd_process(
        self, pid: int, vram: Mapping[int, int], *, queues: Sequence[int] = (), context: int | None = None
    ) -> Path:
        """`vram` is by gpu_id, and has 0 for GPUs that the process does not use; `queues` are gpu_ids."""
        folder = self.sys / "class/kfd/kfd/proc" / str(pid)
        if context is not None:
            folder = folder / f"context_{context}"
        (folder / "queues").mkdir(parents=True, exist_ok=True)
        write(folder / "pasid", "0\n")
        for gpu_id, size in vram.items():
            write(folder / f"vram_{gpu_id}", size)
            write(folder / f"sdma_{gpu_id}", 0)
            write(folder / f"stats_{gpu_id}/cu_occupancy", 0)
            write(folder / f"stats_{gpu_id}/evicted_ms", 0)
        for number, gpu_id in enumerate(queues):
            write(folder / f"queues/{number}/gpuid", str(gpu_id))
            write(folder / f"queues/{number}/size", "65536")
            write(folder / f"queues/{number}/type", "0")
        return folder

    # Processes

    def add_process(self, pid: int, name: str = "python3") -> Path:
        folder = self.proc / str(pid)
        rest = f"S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {100 * pid} 0 0"
        write(folder / "stat", f"{pid} ({name}) {rest}\n")
        write(folder / "status", f"Name:\t{name}\nPPid:\t1\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"
                                 "NSpgid:\t1\nNSsid:\t1\n")  # fmt: skip
        write(folder / "cgroup", "0::/\n")
        write(folder / "comm", f"{name}\n")
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "fdinfo").mkdir(parents=True, exist_ok=True)
        return folder

    def add_drm_client(
        self, pid: int, fd: int, *, pdev: str, client: int, render: int = 128, **lines: str
    ) -> None:
        """An open file of `/dev/dri`; `lines` are further keys, with `_` for `-`."""
        folder = self.proc / str(pid)
        if not folder.exists():
            self.add_process(pid)
        link = folder / "fd" / str(fd)
        link.unlink(missing_ok=True)
        link.symlink_to(f"/dev/dri/renderD{render}")
        text = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t1239\n"
        text += f"drm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{pdev}\npasid:\t32771\n"
        text += "".join(f"{key.replace('_', '-')}:\t{value}\n" for key, value in lines.items())
        write(folder / "fdinfo" / str(fd), text)


def write(path: Path, content: str | bytes | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(f"{content}\n" if isinstance(content, int) else content)


def write_link(folder: Path, speed: str, width: int, max_speed: str, max_width: int) -> None:
    write(folder / "current_link_speed", f"{speed}\n")
    write(folder / "current_link_width", width)
    write(folder / "max_link_speed", f"{max_speed}\n")
    write(folder / "max_link_width", max_width)
