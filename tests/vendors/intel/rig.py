"""The source intel-gpu over a machine of a test."""

from __future__ import annotations

from gpuscope.model.readings import Reading
from gpuscope.vendors.drm.card_source import Roots
from gpuscope.vendors.intel.intel_gpu.intel_source import IntelGpuSource
from tests.vendors.amd.rig import ALL, TickingClock
from tests.vendors.intel.trees import IntelMachine


def intel_source(
    machine: IntelMachine, clock: TickingClock | None = None, integrated: str = "auto"
) -> IntelGpuSource:
    roots = Roots(sysfs=str(machine.sys), procfs=str(machine.proc), rootfs=str(machine.root))
    return IntelGpuSource(
        roots, clock=clock or TickingClock(), reading_seconds=30.0, stale_seconds=60.0, integrated=integrated
    )


def read_intel(machine: IntelMachine) -> Reading:
    source = intel_source(machine)
    try:
        return source.read(ALL)
    finally:
        source.close()
