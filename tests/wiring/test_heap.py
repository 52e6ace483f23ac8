from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

SCENE = """
import os
from gpuscope.wiring.heap import trim_heap

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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80_000_000
