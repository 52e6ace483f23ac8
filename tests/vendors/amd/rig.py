"""The source amdgpu over a machine of a test, with a clock that goes on while it is asked."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Device, Process, Reading, Snapshot
from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu.amdgpu_source import AmdgpuSource
from gpuscope.vendors.drm.card_source import Roots
from tests.vendors.amd.trees import AmdMachine

ALL = frozenset(Tier)
FAST = frozenset({Tier.FAST})
MEDIUM = frozenset({Tier.FAST, Tier.MEDIUM})


class TickingClock:
    """Each question takes a hundredth of a second, so that waiting for what never comes ends."""

    def __init__(self) -> None:
        self._ticks = itertools.count(10_000)
        self.skipped = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return next(self._ticks) / 100 + self.skipped


def source_of(machine: AmdMachine, clock: TickingClock | None = None, integrated: str = "auto") -> AmdgpuSource:
    roots = Roots(sysfs=str(machine.sys), procfs=str(machine.proc), rootfs=str(machine.root))
    return AmdgpuSource(
        roots, clock=clock or TickingClock(), reading_seconds=30.0, stale_seconds=60.0, integrated=integrated
    )


def read(machine: AmdMachine) -> Reading:
    source = source_of(machine)
    try:
        return source.read(ALL)
    finally:
        source.close()


def devices(reading: Reading) -> dict[str, Device]:
    """By PCI address."""
    return {str(device.pci_bus_id): device for device in reading.devices}


def processes(reading: Reading) -> dict[tuple[int, str], Process]:
    """By PID and the UUID of the GPU or partition."""
    assert reading.processes is not ABSENT
    return {
        (process.pid, process.gpu_uuid if process.instance_uuid is ABSENT else process.instance_uuid): process
        for process in reading.processes
    }


def native_text(reading: Reading) -> bytes:
    snapshot = Snapshot(
        node="n", taken_at=1.0, drivers=reading.drivers, devices=reading.devices, processes=reading.processes
    )
    return encode_text(load_family("native").build(Settings()).to_families(snapshot))


@contextmanager
def blocked(path: Path) -> Iterator[None]:
    """A file whose reading does not return until the end of the block."""
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        writer = os.open(path, os.O_RDWR)
        path.unlink()
        path.write_bytes(content)
        os.write(writer, content)
        os.close(writer)
