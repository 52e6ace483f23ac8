"""Compares the time to find the owners of 500 processes: gpuscope's lookup and psutil, in the same run.

python -m benchmarks.owners_bench [--processes 500] [--rounds 7]

Both read start time, name, user, group and cgroup. Cold: no process is cached. Warm: the same processes again,
verified to be the same (psutil: `is_running()` of existing objects). Budget: cold ≤ 1/2 of psutil's time, warm
≤ 1/5. Exits with status 1 if a budget is exceeded.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_lookup import ProcessLookup, keys_of
from gpuscope.agent.owners.users import UserNames


def our_lookup() -> tuple[Proc, ProcessLookup]:
    proc = Proc()
    return proc, ProcessLookup(proc, UserNames())


def ours(pids: Sequence[int], proc: Proc, lookup: ProcessLookup) -> int:
    keys = [key for key, _ in keys_of(pids, proc).values()]
    lookup.want(keys)
    known = lookup.read().value
    return sum(key in known and bool(proc.started_at(key.start_ticks)) for key in keys)


def psutils(processes: Sequence[psutil.Process]) -> int:
    import grp

    known = 0
    for process in processes:
        with process.oneshot():
            if not process.is_running():
                continue
            facts = (process.create_time(), process.name(), process.username())
            group = grp.getgrgid(process.gids().real).gr_name
            cgroup = Path(f"/proc/{process.pid}/cgroup").read_text()
            known += bool(facts and group and cgroup)
    return known


def seconds(work: Callable[[], int], expected: int) -> float:
    started = time.perf_counter()
    found = work()
    taken = time.perf_counter() - started
    assert found == expected, f"{found} of {expected} processes were found"
    return taken


def measure(pids: Sequence[int], rounds: int) -> dict[str, tuple[float, float]]:
    count = len(pids)
    cold, warm = [], []
    kept = [psutil.Process(pid) for pid in pids]
    proc, lookup = our_lookup()
    ours(pids, proc, lookup)
    for _ in range(rounds):
        fresh = our_lookup()
        mine = seconds(partial(ours, pids, *fresh), count)
        theirs = seconds(lambda: psutils([psutil.Process(pid) for pid in pids]), count)
        cold.append((mine, theirs))
        mine = seconds(lambda: ours(pids, proc, lookup), count)
        theirs = seconds(lambda: psutils(kept), count)
        warm.append((mine, theirs))
    return {
        name: (statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs))
        for name, pairs in (("cold", cold), ("warm", warm))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in range(args.processes)]
    try:
        results = measure([sleeper.pid for sleeper in sleepers], args.rounds)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    missed = False
    for name, budget in (("cold", 1 / 2), ("warm", 1 / 5)):
        mine, theirs = results[name]
        ratio = mine / theirs
        missed |= ratio > budget
        print(
            f"{name}: {args.processes} owners in {1000 * mine:.1f} ms, psutil {1000 * theirs:.1f} ms: "
            f"{ratio:.2f} of its time (budget {budget:.2f}){'' if ratio <= budget else '  MISSED'}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
