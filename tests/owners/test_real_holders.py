"""Real processes on GPUs of the fake driver, from the driver's list to the metrics: who works, who is idle."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpuscope.agent.collect.composer import Integrator, SnapshotComposer
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.agent.owners.process_lookup import ProcessLookup
from gpuscope.agent.owners.users import UserNames
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.fakes import Keywords
from tests.owners.immediate_lookup import ImmediateLookup
from tests.sources.nvml_rig import Rig

__all__ = ["driver"]

IDLE_AFTER = 60.0
GIB = 1 << 30


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    driver.gpus(4)
    with Rig(driver, tmp_path) as rig:
        yield rig


@contextmanager
def program(folder: Path, name: str) -> Iterator[int]:
    """A process of that name in a session of its own, as another terminal would start it; its PID."""
    link = folder / name
    link.unlink(missing_ok=True)
    link.symlink_to(shutil.which("sleep") or "/bin/sleep")
    with subprocess.Popen([str(link), "600"], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


class Agent:
    """Its metrics after twenty minutes, of which the clock of the machine makes an hour."""

    def __init__(self, rig: Rig) -> None:
        proc = Proc()
        lookup = ImmediateLookup(ProcessLookup(proc, UserNames("/")))
        composing = SnapshotComposer(
            "n1",
            ledger=ErrorLedger(None),
            integrator=Integrator(max_gap_seconds=60.0),
            owners=OwnerJoin(ProcessEnricher(IDLE_AFTER, proc, lookup)),
        )
        for cycle in range(61):
            reading = rig.tick(20.0)
            snapshot = composing.compose(
                [reading], (), now=1e9 + 60 * cycle, monotonic=20.0 * cycle, sources=()
            )
        self._samples = [
            (family.name.removeprefix("gpuscope_"), dict(labels.pairs), value)
            for family in NativeBuilder().to_families(snapshot)
            for labels, value in family.samples
        ]

    def values(self, metric: str, **labels: object) -> list[float]:
        wanted = {name: str(value) for name, value in labels.items()}
        return [value for name, has, value in self._samples if name == metric and wanted.items() <= has.items()]

    def label(self, name: str, metric: str, **labels: object) -> str:
        wanted = {key: str(value) for key, value in labels.items()}
        (text,) = {
            has[name] for one, has, _ in self._samples if one == metric and wanted.items() <= has.items()
        }
        return text


def idle_held(agent: Agent, gpu: int) -> float:
    return sum(agent.values("gpu_held_idle_seconds_total", gpu=gpu))


def test_video_work_is_work(rig: Rig, tmp_path: Path) -> None:
    """NVENC at 90 %, NVDEC, JPEG and optical flow without the SMs; and an idle process for comparison."""
    engines = ("util_encoder", "util_decoder", "util_jpeg", "util_ofa")
    with ExitStack() as stack:
        pids = [stack.enter_context(program(tmp_path, "ffmpeg")) for _ in range(4)]
        for gpu, (pid, engine) in enumerate(zip(pids, engines, strict=True)):
            rig.driver.set(gpu, util=0, **Keywords({engine: 90}))
            rig.driver.processes(gpu, [Process(pid, memory=GIB, name="ffmpeg", share=1.0)])
        agent = Agent(rig)
    for gpu, pid in enumerate(pids):
        assert agent.values("process_active", pid=pid) == [1], engines[gpu]
        assert agent.values("process_idle_seconds", pid=pid) == [0]
        assert agent.values("process_sm_ratio", pid=pid) == [0]
        assert idle_held(agent, gpu) == 0


def test_copies_are_work_and_a_wrong_clock_makes_no_idle_time(rig: Rig, tmp_path: Path) -> None:
    with program(tmp_path, "python3") as copying, program(tmp_path, "python3") as idle:
        rig.driver.set(0, pcie_rx_kbps=3_000_000)
        rig.driver.processes(0, [Process(copying, memory=GIB, name="python3", share=1.0)])
        rig.driver.processes(1, [Process(idle, memory=GIB, name="python3", share=1.0)])
        agent = Agent(rig)
    assert agent.values("process_idle_seconds", pid=copying) == [0]
    assert agent.values("process_idle_seconds", pid=idle) == [1200], "of the monotonic clock, not 3600"
    assert (idle_held(agent, 0), idle_held(agent, 1)) == (0, 1200)
    assert agent.values("gpu_free_for_seconds", gpu=0) == [0]
    assert agent.values("gpu_free_for_seconds", gpu=2) == [1200]
    (age,) = agent.values("process_age_seconds", pid=idle)
    assert age < 600, "by the kernel's clock"


def test_mps_and_graphics(rig: Rig, tmp_path: Path) -> None:
    """The server and the display server hold no GPU idle; a client does, and works when the server does."""
    with ExitStack() as stack:
        server, other_server = (
            stack.enter_context(program(tmp_path, "nvidia-cuda-mps-server")) for _ in range(2)
        )
        client, idle_client = (stack.enter_context(program(tmp_path, "python3")) for _ in range(2))
        xorg = stack.enter_context(program(tmp_path, "Xorg"))
        names: Keywords = {"name": "nvidia-cuda-mps-server", "memory": 30 << 20}
        rig.driver.set(0, util=80)
        rig.driver.processes(
            0,
            [
                Process(server, **names, share=1.0),
                Process(client, kind="M", memory=GIB, name="python3", share=0.0),
            ],
        )
        rig.driver.processes(
            1,
            [
                Process(other_server, **names, share=0.0),
                Process(idle_client, kind="M", memory=GIB, name="python3", share=0.0),
            ],
        )
        rig.driver.processes(2, [Process(xorg, kind="G", memory=50 << 20, name="Xorg", share=0.0)])
        agent = Agent(rig)
    assert agent.values("process_idle_seconds", pid=client) == [0]
    assert agent.values("process_idle_seconds", pid=idle_client) == [1200]
    assert [idle_held(agent, gpu) for gpu in (0, 1, 2)] == [0, 1200, 0]
    assert agent.values("owner_idle_gpu_seconds_total", kind="user", gpu=2) == [0]
    assert agent.values("owner_held_seconds_total", kind="user", gpu=2) == [1200]


def test_a_process_that_proc_does_not_show_has_no_owner_and_its_memory_is_listed(rig: Rig) -> None:
    pid = 4_194_999  # above the kernel's highest
    for gpu in (0, 1):
        rig.driver.set(gpu, memory_used=8 * GIB)
    rig.driver.processes(0, [Process(pid, memory=8 * GIB, name="python3")])
    agent = Agent(rig)
    assert agent.label("user", "process_memory_bytes", pid=pid) == ""
    assert agent.values("process_age_seconds", pid=pid) == []
    assert agent.label("program", "process_info", pid=pid) == f"pid-{pid}"
    assert agent.values("gpu_unlisted_memory_bytes", gpu=0) == [0]
    assert agent.values("gpu_unlisted_memory_bytes", gpu=1) == [8 * GIB]


def test_two_python3_of_one_user_are_two_programs(rig: Rig, tmp_path: Path) -> None:
    with program(tmp_path, "python3") as first, program(tmp_path, "python3") as second:
        for gpu, pid in enumerate((first, second)):
            rig.driver.processes(gpu, [Process(pid, memory=GIB, name="python3", share=1.0)])
        agent = Agent(rig)
    users = {agent.label("user", "process_memory_bytes", pid=pid) for pid in (first, second)}
    assert len(users) == 1
    assert [agent.label("program", "process_info", pid=pid) for pid in (first, second)] == [
        f"pid-{first}",
        f"pid-{second}",
    ]
