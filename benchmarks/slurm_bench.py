"""Measures one collection of a large Slurm cluster, from clients that print synthetic output.

python -m benchmarks.slurm_bench [--nodes 1000] [--jobs 20000] [--rounds 5]

A quarter of the jobs run. CPU time is that of this process: output read, parsed, and made into the text of the
native family, the larger one, and then of both families; the clients' own time is Slurm's. Memory is what the
process has grown by after all rounds of the native family. Budget: ≤ 0.5 s CPU for a round with every query,
≤ 60 MiB. Exits with status 1 if a budget is exceeded.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuscope.agent.families import Builder
from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm import cluster_text, job_text
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.cli.wiring.heap import keep_one_heap
from gpuscope.model.exposition.text import Encoder, text_encoder
from gpuscope.model.readings import ABSENT, Snapshot

MAX_CPU_SECONDS = 0.5
MAX_GROWTH_MIB = 60.0
START = 1_794_841_395
SDIAG = """Server thread count:  3
Agent queue size:     0
Jobs pending:         3
Jobs running:         2
DBD Agent queue size: 0

Main schedule statistics (microseconds):
	Last cycle:   169
	Mean cycle:   610

Backfilling stats
	Last cycle: 314
	Mean cycle: 325
	Depth Mean: 3
"""
CLIENT = """#!/bin/sh
case "$(basename "$0") $*" in
  "scontrol ping") echo "Slurmctld(primary) at master is UP" ;;
  "scontrol --version") echo "slurm 24.11.5" ;;
  "scontrol show job -a -d") cat {folder}/show_job ;;
  scontrol*|sshare*) ;;
  sdiag*) cat {folder}/sdiag.out ;;
  *) exec cat {folder}/$(basename "$0").txt ;;
esac
"""


def node_lines(count: int) -> Iterator[str]:
    for number in range(count):
        state = "draining|mixed+drain" if number % 50 == 0 else "mixed|mixed"
        reason = "Xid 79" if number % 50 == 0 else "none"
        for partition in ("gpu", "all"):
            yield (
                f"{reason:>{cluster_text.WIDTHS['Reason']}}gpu{number:04d}|{partition}|{state}|32/32/0/64|262144|1031000|"
                f"512000|12.50|gpu:h100:8(S:0-1)|gpu:h100:5(IDX:0-4)|{START}|root|"
            )


def job_lines(count: int, nodes: int, dice: random.Random) -> Iterator[str]:
    for number in range(count):
        user = f"user{dice.randrange(300)}"
        account = f"acct{dice.randrange(40)}"
        start = f"{number + 1}|{number + 1}|N/A|N/A|{user}|gpu"
        tres = "cpu=8,mem=64G,node=1,billing=8,gres/gpu=1,gres/gpu:h100=1"
        times = f"{START - dice.randrange(86400)}|{START - dice.randrange(86400)}"
        if number < count // 4:
            node = f"gpu{number % nodes:04d}"
            end = f"{START + dice.randrange(86400)}"
            fields = f"{start}|RUNNING|1|8|{tres}|{node}|{times}|{START}|{end}|normal|"
            yield _texts(account, "None", f"train-{number}") + fields
        else:
            reason = dice.choice(("Resources", "Priority", "QOSMaxGRESPerUser", "Dependency"))
            fields = f"{start}|PENDING|1|8|{tres}||{times}|N/A|N/A|normal|"
            yield _texts(account, reason, f"train-{number}") + fields


def _texts(*texts: str) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, job_text.WIDTHS.values(), strict=True))


def job_details(count: int, nodes: int) -> Iterator[str]:
    filler = "\n".join(f"   Field{n}=value Other{n}=value Third{n}=a-rather-long-value" for n in range(20))
    for number in range(count):
        yield f"JobId={number + 1} JobName=train-{number}\n{filler}"
        if number < count // 4:
            node = f"gpu{number % nodes:04d}"
            gres = f"gpu:h100:1(IDX:{number % 8})"
            yield f"   JOB_GRES=gpu:h100:1\n     Nodes={node} CPU_IDs=0-7 Mem=65536 GRES={gres}"
        yield "   MinCPUsNode=8 MinMemoryNode=64G\n"


def make_clients(folder: Path, nodes: int, jobs: int) -> None:
    dice = random.Random(1)
    (folder / "cluster_text.txt").write_text("\n".join(node_lines(nodes)) + "\n")
    (folder / "job_text.txt").write_text("\n".join(job_lines(jobs, nodes, dice)) + "\n")
    (folder / "show_job").write_text("\n".join(job_details(jobs, nodes)) + "\n")
    (folder / "sdiag.out").write_text(SDIAG)
    for name in ("squeue", "sinfo", "sdiag", "sshare", "scontrol"):
        (folder / name).write_text(CLIENT.format(folder=folder))
        (folder / name).chmod(0o755)


def resident_mib() -> float:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1024


def run_round(source: SlurmSource, builders: list[Builder], encoder: Encoder) -> tuple[float, int]:
    """CPU seconds of reading and encoding, and the size of the text."""
    began = time.process_time()
    state = source.read(frozenset()).slurm
    assert state is not ABSENT
    assert state.up, state.why
    assert all(query.success for query in state.queries)
    snapshot = Snapshot(node="master", taken_at=time.time(), slurm=state)
    text = encoder.encode(family for builder in builders for family in builder.to_families(snapshot))
    return time.process_time() - began, len(text)


def measure(folder: str, rounds: int) -> int:
    keep_one_heap()  # as the agent does
    builders: list[Builder] = [SlurmMetrics()]
    encoder = text_encoder()
    before = resident_mib()
    # An interval of 0 makes every query due in every round: the most that one round can cost.
    source = SlurmSource(SlurmCommands(folder, 60.0), interval=0.0, slow_interval=0.0)
    first, size = run_round(source, builders, encoder)
    whole = statistics.median(run_round(source, builders, encoder)[0] for _ in range(rounds))
    growth = resident_mib() - before
    hot = SlurmSource(SlurmCommands(folder, 60.0), interval=0.0, slow_interval=3600.0)
    run_round(hot, builders, encoder)
    usual = statistics.median(run_round(hot, builders, encoder)[0] for _ in range(rounds))
    both: list[Builder] = [SlurmMetrics(), SlurmBuilder()]
    second = SlurmSource(SlurmCommands(folder, 60.0), interval=0.0, slow_interval=0.0)
    first_of_both, _ = run_round(second, both, encoder)
    whole_of_both = statistics.median(run_round(second, both, encoder)[0] for _ in range(rounds))
    print(f"every query: {whole:.3f} s CPU (budget {MAX_CPU_SECONDS} s), the first time {first:.3f} s")
    print(f"with the slurm family too: {whole_of_both:.3f} s CPU, the first time {first_of_both:.3f} s")
    print(f"jobs, nodes and statistics only, as three rounds of four: {usual:.3f} s CPU")
    print(f"memory +{growth:.1f} MiB (budget {MAX_GROWTH_MIB:.0f} MiB), exposition {size / 1e6:.1f} MB")
    return int(whole > MAX_CPU_SECONDS or growth > MAX_GROWTH_MIB)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        return measure(options.clients, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        make_clients(Path(folder), options.nodes, options.jobs)
        # In a process of its own: making the output leaves memory behind that is not the collection's.
        command = [sys.executable, "-m", "benchmarks.slurm_bench", "--clients", folder]
        return subprocess.run([*command, "--rounds", str(options.rounds)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
