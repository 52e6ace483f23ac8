"""The CPU time of reading AMD's GPUs: eight MI300X with 64 processes, and a walk over 2,000 processes.

python -m benchmarks.amd_bench [--minutes 2] [--processes 2000]

The tree is made by hand: the kernel's own time for making the content of a file is not in it. Budgets: reading
(each second fast, each 10 s medium, each minute slow) takes ≤ 1 % of a core; a walk over the open files of
2,000 processes takes ≤ 30 ms. Exits with status 1 if a budget is exceeded.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from gpuscope.model.source import Tier
from gpuscope.vendors.amd.amdgpu.amdgpu_source import AmdgpuSource
from gpuscope.vendors.drm.card_source import Roots
from gpuscope.vendors.drm.client_walk import DrmClients
from tests.vendors.amd.families import UNIQUE_ID, add_mi300x, gpu_id_of
from tests.vendors.amd.trees import GIB, AmdMachine

GPUS = 8
PROCESSES = 64
MAX_SHARE = 0.01
MAX_WALK_SECONDS = 0.030
FILES_OF_A_PROCESS = 10


def make_machine(folder: Path) -> AmdMachine:
    machine = AmdMachine(folder)
    machine.add_cpu_node()
    for number in range(GPUS):
        add_mi300x(machine, f"0000:{0x11 + 16 * number:02x}:00.0", unique_id=UNIQUE_ID + number)
    for number in range(PROCESSES):
        used = gpu_id_of(number % GPUS)
        vram = {gpu_id_of(gpu): 20 * GIB if gpu_id_of(gpu) == used else 0 for gpu in range(GPUS)}
        machine.add_kfd_process(1000 + number, vram, queues=[used])
        machine.add_process(1000 + number)
    return machine


def share_of_a_core(machine: AmdMachine, minutes: int) -> float:
    roots = Roots(sysfs=str(machine.sys), procfs=str(machine.proc), rootfs=str(machine.root))
    source = AmdgpuSource(roots)
    source.read(frozenset(Tier))
    began = time.process_time()
    for second in range(60 * minutes):
        source.read(frozenset(tier for tier in Tier if second % max(1, tier.value) == 0))
    spent = time.process_time() - began
    source.close()
    return spent / (60 * minutes)


def walk_seconds(folder: Path, processes: int) -> float:
    """The median of walks over processes that are known; the first walk looks at every file."""
    machine = AmdMachine(folder)
    for pid in range(1000, 1000 + processes):
        files = machine.add_process(pid) / "fd"
        for fd in range(FILES_OF_A_PROCESS):
            (files / str(fd)).symlink_to("/dev/null")
    clients = DrmClients(str(machine.proc), {"amdgpu"}, time.monotonic)
    clients.walk()
    spent = []
    for _ in range(9):
        began = time.process_time()
        clients.walk()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        share = share_of_a_core(make_machine(Path(folder, "gpus")), arguments.minutes)
        walk = walk_seconds(Path(folder, "processes"), arguments.processes)
    print(f"{GPUS} MI300X, {PROCESSES} processes: {share:.2%} of a core (budget {MAX_SHARE:.0%})")
    limit = 1000 * MAX_WALK_SECONDS
    print(f"walk over {arguments.processes} processes: {1000 * walk:.1f} ms (budget {limit:.0f} ms)")
    return int(share > MAX_SHARE or walk > MAX_WALK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
