"""Real processes that really wait, on GPUs of the fake driver: the findings name the cause and the owner.

The agent's parts run in this process, with shorter windows and a clock for timestamps that runs ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuscope.collect.composer import SnapshotComposer
from gpuscope.collect.counters import Integrator
from gpuscope.collect.gpu_trends import GpuTrends
from gpuscope.collect.xid_ledger import XidLedger
from gpuscope.health.facts import sort_samples
from gpuscope.health.finding import Finding
from gpuscope.health.findings import FindingMaker
from gpuscope.owners.owner_join import OwnerJoin
from gpuscope.owners.proc import Proc
from gpuscope.owners.process_enricher import ProcessEnricher
from gpuscope.owners.process_lookup import ProcessLookup
from gpuscope.owners.process_work import ProcessWorkReader
from gpuscope.owners.users import UserNames
from gpuscope.readings import Snapshot
from gpuscope.server.live.collector_samples import snapshot_samples
from gpuscope.server.live.sample_judge import SampleJudge
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.owners.immediate_lookup import ImmediateLookup
from tests.owners.slow_disk import is_possible, slow_disk
from tests.owners.test_process_work import BUSY, NETWORK, program
from tests.sources.nvml_rig import Rig

__all__ = ["driver"]

NOW = time.time()
CYCLES, CYCLE_SECONDS = 24, 0.1
WINDOW_SECONDS = 10.0
TOTAL_KBPS = 5_000_000
READ_SLOWLY = "f = open({file!r}, 'rb', buffering=0)\nwhile True: f.read(4096)"


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        yield rig


def composer() -> SnapshotComposer:
    proc = Proc()
    enricher = ProcessEnricher(
        idle_after=0.2,
        proc=proc,
        lookup=ImmediateLookup(ProcessLookup(proc, UserNames("/"))),
        work=ProcessWorkReader(proc, sample_seconds=CYCLE_SECONDS / 2, window_seconds=WINDOW_SECONDS),
    )
    return SnapshotComposer(
        "n1",
        ledger=XidLedger(None),
        integrator=Integrator(max_gap_seconds=30.0),
        owners=OwnerJoin(enricher),
        trends=GpuTrends(window_seconds=WINDOW_SECONDS),
    )


def watch(rig: Rig) -> dict[str, Finding]:
    """The findings after some seconds, in which a quarter of an hour passes on the clock of timestamps."""
    composing, judge, snapshot = composer(), SampleJudge(), Snapshot(node="n1", taken_at=NOW)
    before = time.monotonic()
    for cycle in range(CYCLES):
        time.sleep(CYCLE_SECONDS)  # the processes need time to wait in
        monotonic = time.monotonic()
        reading = rig.tick(monotonic - before)
        before = monotonic
        now = NOW + 40 * cycle
        snapshot = composing.compose([reading], (), now=now, monotonic=monotonic, sources=())
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
    flows = dict.fromkeys(links, kbps)
    rig.driver.set(gpu, ago=1.0, util=util, power_mw=700_000 * power_share, dram=dram, **flows)
    rig.driver.processes(gpu, [Process(pid, memory=1 << 30, name="python3", share=1.0)])


def test_causes_are_told_apart(rig: Rig, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        load(rig, 0, stack.enter_context(program(BUSY)), 20.0)
        load(rig, 1, stack.enter_context(program(NETWORK)), 20.0)
        load(rig, 2, stack.enter_context(program(BUSY)), 95.0)  # it works: nothing is wrong
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
