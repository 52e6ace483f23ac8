"""The source `nccl-ras` with real processes and sockets, also in another network namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Pid, Process, Snapshot, Uuid
from gpuscope.model.readings.snapshot import CollectiveJob
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nccl_ras import open_nccl_ras
from gpuscope.vendors.nvidia.nccl_ras.endpoints import parse_ipv4_addresses
from gpuscope.vendors.nvidia.nccl_ras.ras_protocol import own_network
from tests.fake_nccl import World
from tests.fakes import gpu
from tests.ports import free_port

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that listens as NCCL does; returns its PID, by which it names itself on this host."""
    with ExitStack() as stack:

        def start_process(port: int, host: str, *prefix: str) -> int:
            file = tmp_path / f"{port}.json"
            process = stack.enter_context(
                subprocess.Popen(
                    [*prefix, sys.executable, "-m", "tests.fake_nccl", str(port), str(file)],
                    env={**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}"},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            file.write_bytes(World((host,), 1, first_pid=process.pid).job.to_json())
            return process.pid

        yield start_process


def real_jobs(*pids: int) -> tuple[CollectiveJob, ...]:
    """What the real source, with the real /proc and sockets, says about processes on GPUs 0, 1, …"""
    source = open_nccl_ras(Settings())
    processes = tuple(Process(pid=Pid(pid), gpu_uuid=Uuid(f"GPU-{number}")) for number, pid in enumerate(pids))
    devices = tuple(gpu(number) for number in range(len(pids)))
    source.observe(Snapshot(node="n", taken_at=0.0, devices=devices, processes=processes))
    reading = source.read(frozenset(Tier)).collectives
    assert reading is not ABSENT
    return reading.jobs


def test_real_processes_are_asked_over_real_sockets(start: Start) -> None:
    addresses = sorted(parse_ipv4_addresses(Path("/proc/self/net/fib_trie").read_bytes()))
    hosts = addresses[-1], addresses[0]
    pids = [start(free_port(), host) for host in hosts]
    jobs = real_jobs(*pids)
    assert {(job.name, job.local[0].gpu_uuid) for job in jobs} == {
        (f"{host}:{pid}", f"GPU-{number}") for number, (host, pid) in enumerate(zip(hosts, pids, strict=True))
    }


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_a_service_in_another_network_namespace_is_reached(start: Start) -> None:
    before = own_network()
    script = 'ip link set lo up && exec "$@"'
    pid = start(free_port(), "127.0.0.1", "unshare", "--net", "sh", "-c", script, "sh")
    assert Path(f"/proc/{pid}/ns/net").stat().st_ino != before
    assert [job.name for job in real_jobs(pid)] == [f"127.0.0.1:{pid}"]
    assert own_network() == before, "the agent's own thread stays where it is"
