"""Workloads: how each kind of work uses a GPU, and how its utilisation changes over time.

Utilisation says only that some kernel ran. The other columns say which part of the chip that kernel used, so
that a simulated utilisation of 100 % is, like a real one, not full use. They are shares of the utilisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from gpuscope.model.readings import NO_WORK, ProcessWork

Beat: TypeAlias = tuple[float, float]
"""Seconds, and the utilisation during them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    rhythm: Callable[[Random], list[Beat]]
    intensity: float = 0.0  # power above idle at full utilisation, as a share of limit minus idle power
    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    integer: float = 0.0
    pcie_in: float = 0.0  # shares of the link's bandwidth
    pcie_out: float = 0.0
    link: float = 0.0
    encoder: float = 0.0
    decoder: float = 0.0
    memory: tuple[float, float] = (0.0, 0.0)  # least and most of the GPU's memory
    ramp_seconds: float = 1.0  # until all of it is allocated
    hours: tuple[float, float] = (1.0, 1.0)
    commands: tuple[str, ...] = ("python3",)
    on_cpu: ProcessWork = NO_WORK  # what its process does on the CPU: why the GPU waits, if it does
    reads: float = 0.0  # bytes per second of files, after its start


def _on_cpu(
    thread: float, *, io: float = 0.0, network: float = 0.0, workers: int = 0, workers_cpu: float = 0.0
) -> ProcessWork:
    """`thread` is the share of time in which the busiest thread runs; `workers` are those of a data loader."""
    return ProcessWork(
        cpu_ratio=round(1.1 * thread, 3),
        run_ratio=thread,
        busiest_thread_ratio=thread,
        io_wait_ratio=io,
        network_wait_ratio=network,
        resident_memory_bytes=(3 + workers) * float(1 << 30),
        children=workers,
        children_cpu_ratio=workers_cpu,
    )


def _steady(random: Random, seconds: float, low: float, high: float) -> Iterator[Beat]:
    """A constant level with small random changes, as real loads have."""
    level = random.uniform(low, high)
    while seconds > 0:
        lasts = min(seconds, random.uniform(2.0, 9.0))
        level = min(high, max(low, level + random.gauss(0, (high - low) / 3)))
        yield lasts, round(level, 3)
        seconds -= lasts


def _training(random: Random) -> list[Beat]:
    beats: list[Beat] = []
    for _ in range(random.randint(3, 5)):
        beats += _steady(random, random.uniform(150, 320), 0.93, 1.0)
        beats += _steady(random, random.uniform(6, 14), 0.3, 0.5)  # evaluation
    beats.append((random.uniform(18, 45), 0.04))  # the checkpoint is written
    return beats


def _starved(random: Random) -> list[Beat]:
    """Training that waits for its data loader: it alternates between busy and waiting."""
    beats: list[Beat] = []
    for _ in range(random.randint(12, 20)):
        beats += _steady(random, random.uniform(3, 8), 0.85, 1.0)
        beats += _steady(random, random.uniform(3, 7), 0.02, 0.1)
    return beats


def _waiting(random: Random) -> list[Beat]:
    """Work that waits for its data most of the time."""
    beats: list[Beat] = []
    for _ in range(random.randint(10, 16)):
        beats += _steady(random, random.uniform(2, 4), 0.7, 0.95)
        beats += _steady(random, random.uniform(8, 14), 0.0, 0.04)
    return beats


def _spinning(random: Random) -> list[Beat]:
    return [(3600.0, 1.0)]


def _sweep(random: Random) -> list[Beat]:
    beats: list[Beat] = []
    for _ in range(random.randint(4, 7)):
        beats += _steady(random, random.uniform(30, 75), 0.65, 0.9)
        beats += _steady(random, random.uniform(4, 9), 0.05, 0.25)
    return beats


def _inference(random: Random) -> list[Beat]:
    """Requests come in bursts: usually well below the level of the hour, at times up to it."""
    return [
        (random.uniform(1.5, 7.0), round(min(1.0, max(0.03, random.lognormvariate(-0.75, 0.45))), 3))
        for _ in range(random.randint(30, 60))
    ]


def _notebook(random: Random) -> list[Beat]:
    beats: list[Beat] = []
    for _ in range(random.randint(2, 4)):
        beats.append((random.uniform(240, 1500), 0.0))  # pauses of its owner
        beats += _steady(random, random.uniform(8, 70), 0.25, 0.95)
    return beats


def _transcode(random: Random) -> list[Beat]:
    return list(_steady(random, 240, 0.12, 0.4))


def _still(random: Random) -> list[Beat]:
    return [(3600.0, 0.0)]


IDLE: Final = Workload(name="idle", rhythm=_still)

TRAINING: Final = Workload(
    name="training", rhythm=_training, intensity=1.03,
    sm=0.86, occupancy=0.38, tensor=0.47, dram=0.44, fp32=0.12, fp16=0.05, integer=0.2,
    pcie_in=0.05, pcie_out=0.02, link=0.33, memory=(0.72, 0.93), ramp_seconds=75, hours=(2.5, 14),
    commands=("python3", "python3.11", "torchrun"),
    on_cpu=_on_cpu(0.82, io=0.02, workers=8, workers_cpu=2.4), reads=4e8,
)  # fmt: skip
STARVED: Final = Workload(
    name="starved", rhythm=_starved, intensity=0.7,
    sm=0.62, occupancy=0.27, tensor=0.21, dram=0.3, fp32=0.15, fp16=0.02, integer=0.15,
    pcie_in=0.22, pcie_out=0.02, link=0.08, memory=(0.3, 0.6), ramp_seconds=40, hours=(1.5, 7),
    commands=("python", "python3"),
    on_cpu=_on_cpu(0.99, workers=0), reads=1.8e8,
)  # fmt: skip
SIMULATION: Final = Workload(
    name="simulation", rhythm=_sweep, intensity=0.82,
    sm=0.74, occupancy=0.51, tensor=0.0, dram=0.55, fp64=0.31, fp32=0.24, integer=0.18,
    pcie_in=0.03, pcie_out=0.03, link=0.04, memory=(0.1, 0.35), ramp_seconds=12, hours=(1, 6),
    commands=("gmx_mpi", "lmp", "pmemd.cuda"),
    on_cpu=_on_cpu(0.88), reads=2e6,
)  # fmt: skip
SWEEP: Final = Workload(
    name="sweep", rhythm=_sweep, intensity=0.66,
    sm=0.55, occupancy=0.3, tensor=0.18, dram=0.28, fp32=0.18, fp16=0.03, integer=0.12,
    pcie_in=0.08, pcie_out=0.02, link=0.0, memory=(0.15, 0.4), ramp_seconds=20, hours=(0.2, 0.9),
    commands=("python3",),
    on_cpu=_on_cpu(0.55, io=0.05, workers=4, workers_cpu=0.9), reads=9e7,
)  # fmt: skip
INFERENCE: Final = Workload(
    name="inference", rhythm=_inference, intensity=0.72,
    sm=0.48, occupancy=0.21, tensor=0.16, dram=0.58, fp32=0.06, fp16=0.08, integer=0.1,
    pcie_in=0.04, pcie_out=0.03, link=0.06, memory=(0.55, 0.9), ramp_seconds=95, hours=(9, 26),
    commands=("VLLM::EngineCore", "tritonserver", "python3"),
    on_cpu=_on_cpu(0.42),
)  # fmt: skip
NOTEBOOK: Final = Workload(
    name="notebook", rhythm=_notebook, intensity=0.45,
    sm=0.34, occupancy=0.18, tensor=0.07, dram=0.22, fp32=0.14, integer=0.08,
    pcie_in=0.06, pcie_out=0.02, link=0.0, memory=(0.04, 0.45), ramp_seconds=8, hours=(2, 9),
    commands=("python3", "ipykernel_launcher"),
    on_cpu=_on_cpu(0.06),
)  # fmt: skip
TRANSCODE: Final = Workload(
    name="transcode", rhythm=_transcode, intensity=0.4,
    sm=0.2, occupancy=0.1, dram=0.25, fp32=0.05, integer=0.1,
    pcie_in=0.05, pcie_out=0.04, encoder=0.9, decoder=1.0, memory=(0.03, 0.08), ramp_seconds=3, hours=(1, 5),
    commands=("ffmpeg",),
    on_cpu=_on_cpu(0.48, io=0.03), reads=3e7,
)  # fmt: skip
HELD: Final = Workload(
    name="held", rhythm=_still, memory=(0.55, 0.75), ramp_seconds=30, hours=(3, 9), commands=("python3",),
    on_cpu=_on_cpu(0.0),
)  # fmt: skip
DISK_BOUND: Final = Workload(
    name="disk-bound", rhythm=_waiting, intensity=0.7,
    sm=0.6, occupancy=0.27, tensor=0.21, dram=0.3, fp32=0.15, pcie_in=0.2, memory=(0.4, 0.6), ramp_seconds=40,
    on_cpu=_on_cpu(0.12, io=0.78, workers=4, workers_cpu=0.3), reads=1.2e8,
)  # fmt: skip
NETWORK_BOUND: Final = Workload(
    name="network-bound", rhythm=_waiting, intensity=0.7,
    sm=0.6, occupancy=0.27, tensor=0.21, dram=0.3, fp32=0.15, pcie_in=0.2, memory=(0.4, 0.6), ramp_seconds=40,
    on_cpu=_on_cpu(0.1, network=0.85, workers=4, workers_cpu=0.2), reads=4e7,
)  # fmt: skip
WAITING_RANK: Final = Workload(  # its kernel spins in a collective and polls its peers
    name="waiting-rank", rhythm=_spinning, intensity=0.08,
    sm=0.12, occupancy=0.03, dram=0.02, integer=0.1, pcie_in=0.01, pcie_out=0.01, link=0.02,
    memory=(0.7, 0.8), ramp_seconds=75, on_cpu=_on_cpu(0.9, workers=8, workers_cpu=0.1),
)  # fmt: skip
HUNG: Final = Workload(  # as a waiting rank, but its peers never answer
    name="hung", rhythm=_spinning, intensity=0.08, sm=0.12, occupancy=0.03, integer=0.1,
    memory=(0.7, 0.8), ramp_seconds=75, on_cpu=_on_cpu(1.0, workers=8),
)  # fmt: skip
