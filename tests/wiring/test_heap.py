"""Settings of malloc, seen from outside: each test looks at a process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import running
from tests.ports import free_port

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim"
)
SCENE = """
import os
from gpuscope.cli.wiring.heap import trim_heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

many = [b"x" * 60_000 for _ in range(2_000)]  # below what the C library takes from the system one by one
last = many[1::100]  # spread over the heap, so that its end cannot be given back
del many
before = resident()
trim_heap()
print(before - resident())
"""

THREADS = """
import sys, threading
from gpuscope.cli.wiring.heap import keep_one_heap

def hold_memory():
    kept = [bytes(5000) for _ in range(100)]
    maps_are_read.wait()

if sys.argv[1] == "one heap":
    keep_one_heap()
maps_are_read = threading.Barrier(4)
for _ in range(3):
    threading.Thread(target=hold_memory).start()
with open("/proc/self/maps") as file:
    print(file.read(), end="")
maps_are_read.wait()
"""
HEAP_BYTES = 64 << 20
"""What glibc reserves for a thread's heap, at a multiple of it."""


def thread_heaps(maps: str) -> int:
    """Count the heaps of threads in the text of /proc/PID/maps."""
    regions = [line.split(maxsplit=2)[:2] for line in maps.splitlines()]
    ends = [int(where.split("-")[1], 16) for where, mode in regions if mode == "---p"]
    begins = {int(where.split("-")[0], 16) for where, mode in regions if mode == "rw-p"}
    return sum(end % HEAP_BYTES == 0 and end - HEAP_BYTES in begins for end in ends)


def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80_000_000


@pytest.mark.parametrize(("heaps", "own"), [("one heap", False), ("default", True)])
def test_threads_share_a_heap(heaps: str, own: bool) -> None:
    done = subprocess.run([sys.executable, "-c", THREADS, heaps], capture_output=True, text=True, check=True)
    assert (thread_heaps(done.stdout) > 0) is own


def test_a_server_has_one_heap(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpuscope", "server", "--listen", address, "--data", str(tmp_path)]
    with running(command, f"http://{address}/-/ready") as process:
        assert thread_heaps(Path(f"/proc/{process.pid}/maps").read_text()) == 0
