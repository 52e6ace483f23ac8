"""Real processes that really wait, on GPUs of the fake driver: the findings name the cause and the owner.

The agent's parts run in this process. Its clock runs ahead, ten seconds with each cycle, and the processes are
an hour older than they are; what they do on the CPU is measured in real time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.collect.composer import Integrator, SnapshotComposer
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.gpu_trends import GpuTrends
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.agent.owners.process_lookup import ProcessKey, ProcessLookup
from gpuscope.agent.owners.process_work import ProcessWorkReader
from gpuscope.agent.owners.users import UserNames
from gpuscope.judge.checks.facts import sort_samples
from gpuscope.judge.checks.finding import Finding
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.model.readings import ProcessWork, Snapshot
from gpuscope.serve.live.collector_samples import snapshot_samples
from gpuscope.serve.live.sample_judge import SampleJudge
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.owners.immediate_lookup import ImmediateLookup
from tests.owners.slow_disk import is_possible, slow_disk
from tests.owners.test_process_work import BUSY, NETWORK, program
from tests.sources.nvml_rig import Rig

__all__ = ["driver"]

NOW = time.time()
CYCLES, SLEEP_SECONDS = 70, 0.03
CYCLE_SECONDS = 10.0
"""On the agent's clock."""
CYCLES_PER_JUDGEMENT = 6
OLDER_SECONDS = 3600.0
TOTAL_KBPS = 5_000_000
LOAD = "data, batch = open('/dev/zero', 'rb', buffering=0), bytearray(1 << 24)\n"
POLITE = "os.nice(19)\n"  # the machine may have as few cores as there are busy programs
LOAD_ALWAYS = POLITE + LOAD + "while True: data.readinto(batch)"
LOAD_FROM_NETWORK = f"""{LOAD}
listener = socket.create_server(('127.0.0.1', 0))
sender, receiver = socket.create_connection(listener.getsockname()), listener.accept()[0]
def send():
    while True: sender.send(b'.'); time.sleep(0.05)
threading.Thread(target=send, daemon=True).start()
while receiver.recv(1): data.readinto(batch)
"""
READ_SLOWLY = "f = open({file!r}, 'rb', buffering=0)\nwhile True: f.read(4096)"


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        yield rig


class RealTimeWork(ProcessWorkReader):
    """What the kernel counts does not run ahead."""

    def advance(self, keys: Iterable[ProcessKey], at: float) -> Mapping[ProcessKey, ProcessWork]:
        return super().advance(keys, time.monotonic())


def composer() -> SnapshotComposer:
    proc = Proc(since_boot=lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + OLDER_SECONDS)
    enricher = ProcessEnricher(
        idle_after=0.2,
        proc=proc,
        lookup=ImmediateLookup(ProcessLookup(proc, UserNames("/"))),
        work=RealTimeWork(proc, sample_seconds=SLEEP_SECONDS / 2, window_seconds=100 * SLEEP_SECONDS),
    )
    return SnapshotComposer(
        "n1",
        ledger=ErrorLedger(None),
        integrator=Integrator(max_gap_seconds=30.0),
        owners=OwnerJoin(enricher),
        trends=GpuTrends(),
    )


def watch(rig: Rig) -> dict[str, Finding]:
    """The findings after some seconds, in which more than ten minutes pass on the agent's clock."""
    composing, judge, snapshot = composer(), SampleJudge(), Snapshot(node="n1", taken_at=NOW)
    for cycle in range(CYCLES):
        time.sleep(SLEEP_SECONDS)  # the processes need time to wait in
        now = NOW + CYCLE_SECONDS * cycle
        snapshot = composing.compose([rig.tick(CYCLE_SECONDS)], (), now=now, monotonic=now, sources=())
        if cycle % CYCLES_PER_JUDGEMENT == 0:
            judge.add(snapshot_samples(snapshot), now)
    fleet = sort_samples(snapshot_samples(snapshot), snapshot.taken_at)
    found = FindingMaker(fleet.nodes, others=judge.others).make(judge.open_now())
    return {one.kind: one for one in found if one.kind != "persistence_off"}


def load(
    rig: Rig,
    gpu: int,
    pid: int,
    util: float,
    *,
    power_share: float = 0.8,
    kbps: float = TOTAL_KBPS,
    dram: float = 0.0,
) -> None:
    links = ("pcie_tx_kbps", "pcie_rx_kbps", "nvlink_tx_kibps", "nvlink_rx_kibps")
    flows: dict[str, Any] = dict.fromkeys(links, kbps)
    power_mw, clock_mhz = 700_000 * power_share, 1900.0
    rig.driver.set(gpu, ago=1.0, util=util, power_mw=power_mw, clock_sm=clock_mhz, dram=dram, **flows)
    rig.driver.processes(gpu, [Process(pid, memory=1 << 30, name="python3", share=1.0)])


def test_causes_are_told_apart(rig: Rig, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        loads_always = stack.enter_context(program(LOAD_ALWAYS))
        load(rig, 0, loads_always, 20.0)
        load(rig, 1, stack.enter_context(program(LOAD_FROM_NETWORK)), 20.0)
        load(rig, 2, loads_always, 95.0)  # it works: nothing is wrong
        load(rig, 4, stack.enter_context(program(POLITE + BUSY)), 20.0)  # a server may poll
        load(rig, 5, stack.enter_context(program(NETWORK)), 20.0)  # or sleep until a request comes
        if not is_possible():
            file = stack.enter_context(slow_disk(disk, read_seconds=0.1))
            load(rig, 3, stack.enter_context(program(READ_SLOWLY.format(file=str(file)))), 20.0)
        found = watch(rig)
    assert found["waits_for_data"].gpus == ("0",)
    assert found["waits_for_data"].owner.kind in ("user", "container")
    assert "one thread uses a whole core, the GPU is busy" in found["waits_for_data"].why
    assert found["waits_for_network"].gpus == ("1",)
    expected = {"waits_for_data", "waits_for_network"}
    if not is_possible():
        assert found["waits_for_disk"].gpus == ("3",)
        expected.add("waits_for_disk")
    assert found.keys() == expected


def test_a_hung_rank_and_the_others_that_wait(rig: Rig) -> None:
    """Two ranks spin and nothing moves: they hang. Of two others one spins and one works."""
    with program("time.sleep(60)") as hung, program("time.sleep(60) # rank") as working:
        for gpu in (0, 1):
            load(rig, gpu, hung, 100.0, power_share=0.2, kbps=10.0)
        load(rig, 4, working, 100.0, power_share=0.2)
        load(rig, 5, working, 100.0, power_share=0.8)
        found = watch(rig)
    assert found["hung"].gpus == ("0", "1")
    assert found["hung"].since == pytest.approx(NOW, abs=60)
    assert found["waits_for_rank"].gpus == ("4",)
    assert found["waits_for_rank"].args["slow"] == "GPU 5"


def test_a_gpu_that_computes_at_low_power_is_not_hung(rig: Rig) -> None:
    with program("time.sleep(60)") as pid:
        load(rig, 0, pid, 100.0, power_share=0.2, kbps=10.0, dram=40.0)
        load(rig, 1, pid, 100.0, power_share=0.2)  # it transfers
        load(rig, 2, pid, 100.0, power_share=0.6, kbps=10.0)
        found = watch(rig)
    assert "hung" not in found
