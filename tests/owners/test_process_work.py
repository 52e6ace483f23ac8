"""What real processes do on the CPU, from /proc: busy threads, slow disks, sockets; and missing files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.owners.process_lookup import ProcessKey, keys_of
from gpuscope.agent.owners.process_work import MAX_PROCESSES, ProcessWorkReader
from gpuscope.model.readings import ABSENT, ProcessWork
from tests.owners.slow_disk import is_possible, slow_disk
from tests.owners.trees import ProcTree

BUSY = "while True: pass"
NETWORK = "l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); c.recv(1)"
LOOKS, SAMPLE_SECONDS = 20, 0.05


@contextmanager
def program(code: str) -> Iterator[int]:
    """A Python program that has begun its work; its PID."""
    begun = "import os, socket, sys, threading, time; print(flush=True)\n"
    with subprocess.Popen([sys.executable, "-c", begun + code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def watch(pid: int) -> ProcessWork:
    """A second of it."""
    proc = Proc()
    reader = ProcessWorkReader(proc, sample_seconds=SAMPLE_SECONDS / 2, window_seconds=LOOKS * SAMPLE_SECONDS)
    ((key, _),) = keys_of([pid], proc).values()
    work: ProcessWork = ProcessWork()
    for _ in range(LOOKS):
        work = reader.advance([key], time.monotonic())[key]
        time.sleep(SAMPLE_SECONDS)  # the process needs time to do what it does
    return work


def share(value: object) -> float:
    assert value is not ABSENT
    assert isinstance(value, float)
    return value


def test_one_busy_thread() -> None:
    with program(BUSY) as pid:
        work = watch(pid)
    assert share(work.busiest_thread_ratio) > 0.9  # also on a busy machine
    assert share(work.run_ratio) == pytest.approx(share(work.cpu_ratio), abs=0.2)
    assert work.children == 0
    assert share(work.resident_memory_bytes) > 1e6


def test_a_busy_thread_that_is_not_the_main_one() -> None:
    with program(f"def busy():\n  {BUSY}\nthreading.Thread(target=busy).start(); time.sleep(60)") as pid:
        work = watch(pid)
    assert share(work.busiest_thread_ratio) > 0.9
    assert share(work.run_ratio) < 0.1


def test_a_busy_child_is_a_worker_of_its_parent() -> None:
    die_with_parent = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
    with program(f"if os.fork() == 0:\n  {die_with_parent}\n  {BUSY}\ntime.sleep(60)") as pid:
        work = watch(pid)
    assert work.children == 1
    assert share(work.children_cpu_ratio) > 5 * share(work.cpu_ratio)
    assert share(work.busiest_thread_ratio) > 0.9


def test_a_process_that_waits_for_the_network() -> None:
    with program(NETWORK) as pid:
        work = watch(pid)
    if work.network_wait_ratio is ABSENT:
        pytest.skip("/proc/PID/wchan is not readable here")
    assert share(work.network_wait_ratio) > 0.9
    assert share(work.io_wait_ratio) < 0.1


def test_a_process_that_sleeps_waits_for_nothing() -> None:
    with program("time.sleep(60)") as pid:
        work = watch(pid)
    assert (work.io_wait_ratio, work.network_wait_ratio) in ((0.0, 0.0), (0.0, ABSENT))
    assert share(work.busiest_thread_ratio) < 0.1


def test_a_process_that_reads_from_a_slow_disk(tmp_path: Path) -> None:
    if why := is_possible():
        pytest.skip(why)
    with (
        slow_disk(tmp_path, read_seconds=0.2) as file,
        program(f"f = open({str(file)!r}, 'rb', buffering=0)\nwhile True: f.read(4096)") as pid,
    ):
        work = watch(pid)
    assert share(work.io_wait_ratio) > 0.7
    assert share(work.busiest_thread_ratio) < 0.2


def test_what_cannot_be_read_is_absent(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(7, start_ticks=100)
    key = ProcessKey(7, 100)
    reader = ProcessWorkReader(Proc(str(tmp_path)), sample_seconds=1, window_seconds=6)
    for at in range(8):
        work = reader.advance([key], float(at))[key]
    assert (work.run_ratio, work.network_wait_ratio, work.children, work.busiest_thread_ratio) == (ABSENT,) * 4
    assert work.cpu_ratio == 0.0
    assert reader.advance([ProcessKey(7, 101)], 20.0) == {}, "another process has its PID"
    assert len(reader) == 0


def test_it_looks_only_when_it_is_time_and_at_a_bounded_number(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    keys = []
    for pid in range(1, MAX_PROCESSES + 11):
        tree.add(pid, start_ticks=100)
        keys.append(ProcessKey(pid, 100))
    reader = ProcessWorkReader(Proc(str(tmp_path)), sample_seconds=5)
    assert len(reader.advance(keys, 0.0)) == MAX_PROCESSES
    assert len(reader.advance(keys, 4.0)) == MAX_PROCESSES
    assert len(reader.advance(keys, 5.0)) == len(keys)  # the others had their turn


def test_reads_of_a_process_and_its_children_are_counted_once(tmp_path: Path) -> None:
    """A child reads a file and is waited for: the kernel then adds its reads to its parent's."""
    file = tmp_path / "data"
    file.write_bytes(b"x" * 3_000_000)
    child = f"open({str(file)!r}, 'rb').read(); print('read', flush=True); sys.stdin.readline(); os._exit(0)"
    code = f"""
begin = os.fork()
if begin == 0: {child}
os.waitpid(begin, 0)
print('waited', flush=True)
sys.stdin.read()
"""
    begun = "import os, sys\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", begun + code], **pipes) as process:  # type: ignore[call-overload]
        try:
            ((key, _),) = keys_of([process.pid], Proc()).values()
            reader = ProcessWorkReader(Proc(), sample_seconds=1)
            counted = []
            for at, line in enumerate((b"read\n", b"waited\n")):
                assert process.stdout.readline() == line
                work = reader.advance([key], float(at))[key]
                counted.append(share(work.read_bytes))
                process.stdin.write(b"\n")
                process.stdin.flush()
        finally:
            process.kill()
    assert 3_000_000 < counted[0] <= counted[1] < counted[0] + 1_000_000


def test_reads_never_decrease_and_are_absent_where_they_cannot_be_read(tmp_path: Path) -> None:
    """Its child ends, and nobody waits for it."""
    tree = ProcTree(tmp_path)
    io = tree.add(7, start_ticks=100) / "io"
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/children").write_text("8 ")
    (tree.add(8, start_ticks=100) / "io").write_text("rchar: 5000\nwchar: 1\n")
    key, reader = ProcessKey(7, 100), ProcessWorkReader(Proc(str(tmp_path)), sample_seconds=1)
    counted = []
    for at, (own, children) in enumerate(((100, "8 "), (100, ""), (300, ""), (None, ""), (50, ""))):
        (tmp_path / "7/task/7/children").write_text(children)
        io.unlink(missing_ok=True)
        if own is not None:
            io.write_text(f"rchar: {own}\nwchar: 1\n")
        counted.append(reader.advance([key], float(at))[key].read_bytes)
    assert counted == [5100, 5100, 5300, ABSENT, 50]
