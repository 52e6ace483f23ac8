"""Short processes by the ten thousands: what is kept, what is exported and what is allocated stays flat.

SLOW=1 makes them a hundred thousand.
"""

from __future__ import annotations

import gc
import os
import sys

from gpuscope.agent.families import load_family
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.proc import Proc, ProcessRelations, ProcessStat, ProcessStatus
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.agent.owners.process_lookup import ProcessLookup
from gpuscope.agent.owners.users import UserNames
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Counters, Pid, Process, Snapshot
from tests.fakes import gpu
from tests.owners.immediate_lookup import ImmediateLookup
from tests.owners.trees import pod_cgroup

AT_ONCE = 250
CYCLES = 400 if os.environ.get("SLOW") == "1" else 80


class BusyProc(Proc):
    """Every PID is there, each in a pod of its own, by a user of its own."""

    def stat(self, pid: int) -> ProcessStat:
        return ProcessStat("short", 100 + pid)

    def status(self, pid: int) -> ProcessStatus:
        return ProcessStatus(1_000_000 + pid, 1_000_000 + pid, ProcessRelations(1, pid, pid))

    def cgroup(self, pid: int) -> str:
        return pod_cgroup(f"00000000-0000-0000-0000-{pid:012x}", f"{pid:064x}")

    def environ(self, pid: int, most: int = 0) -> bytes:
        return b""

    def started_at(self, start_ticks: int) -> float:
        return float(start_ticks)


def test_a_churn_of_processes() -> None:
    proc = BusyProc()
    lookup = ImmediateLookup(ProcessLookup(proc, UserNames("/nonexistent")))
    join = OwnerJoin(ProcessEnricher(60.0, proc, lookup), OwnerAccounts(max_gap_seconds=100))
    devices = (gpu(0, memory_used_bytes=1e9), gpu(1, memory_used_bytes=1e9))
    builders = [load_family(name).build(Settings()) for name in ("native", "sessions")]
    lines, blocks = [], []
    for cycle in range(CYCLES):
        first = 1000 + cycle * AT_ONCE
        processes = tuple(
            Process(pid=Pid(first + n), gpu_uuid=devices[n % 2].uuid, memory_bytes=float(n), sm_ratio=0.001)
            for n in range(AT_ONCE)
        )
        counters = {device.uuid: Counters(energy_joules=100.0 * cycle) for device in devices}
        sessions, ownership = join.advance(
            processes, devices, counters, simulated=False, now=float(cycle), monotonic=float(cycle)
        )
        if (cycle + 1) % (CYCLES // 10) == 0:
            shot = Snapshot(
                node="n", taken_at=float(cycle), devices=devices, processes=sessions, ownership=ownership
            )
            text = b"".join(encode_text(builder.to_families(shot)) for builder in builders)
            lines.append(text.count(b"\n"))
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert len(lookup.known) == AT_ONCE
    assert max(lines[2:]) - min(lines[2:]) <= 10, lines
    settled = blocks[2:]
    assert max(settled) - min(settled) < 0.02 * settled[0], blocks
