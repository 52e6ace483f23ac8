"""`gpuscope up --demo` as a process: it answers before its history is complete, and stops at once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from gpuscope import __version__
from gpuscope.demo.simulated_history import LARGE_FLEET_STEP_SECONDS
from gpuscope.history.store import Store
from tests.store.support import named
from tests.waiting import wait_for

NODES, GPUS = 40, 4
COMMAND = (sys.executable, "-m", "gpuscope")


RECORD_USE = """
import os, sys
from pathlib import Path

used = set()

def record(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        used.add(os.path.realpath(os.fsdecode(arguments[0])))
    elif event in ("socket.connect", "subprocess.Popen", "os.posix_spawn"):
        used.add(f"{event} {arguments[1] if event == 'socket.connect' else arguments[0]}")
    elif event == "ctypes.dlopen":
        used.add(f"load {arguments[0]}")

sys.addaudithook(record)
from gpuscope.cli import main

code = main(sys.argv[2:])
Path(sys.argv[1]).write_text("\\n".join(sorted(used)))
sys.exit(code)
"""
"""A program that writes down what it opened, listed, loaded, connected to or started."""


OWN_MEMORY_LIMIT = ("/proc/meminfo", "/sys/fs/cgroup/memory")


@contextmanager
def running(*arguments: str, command: tuple[str, ...] = COMMAND) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a program on a free port, and the program."""
    command = (*command, *arguments, "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"gpuscope is at (http://\S+)", line):
                    yield found[1], process
                    break
            else:
                pytest.fail("it ended without an address")
        finally:
            process.kill()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def shows_all_gpus(url: str) -> bool:
    live = json.loads(read(f"{url}/api/live"))
    return len(live["nodes"]) == NODES and len(live["gpus"]) >= NODES * GPUS


def ratio(url: str) -> float:
    found = re.search(r"^gpuscope_demo_history_ratio (\S+)$", read(f"{url}/metrics"), re.MULTILINE)
    assert found
    return float(found[1])


def test_the_live_stream_brings_a_picture_and_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    with running("up", "--demo", "--data", str(tmp_path)) as (url, process):
        with urllib.request.urlopen(f"{url}/api/live/stream", timeout=60) as stream:
            events = (line for line in stream if line.startswith(b"event: "))
            names = (line for line in events if line != b"event: clock\n")  # stands before each group of events
            assert list(islice(names, 3)) == [
                b"event: picture\n",
                b"event: difference\n",
                b"event: difference\n",
            ]
        process.send_signal(signal.SIGINT)
        _, logged = process.communicate(timeout=60)
        assert process.returncode == 0
    # Python 3.13 warns about a database that is not closed.
    assert "Warning" not in logged
    assert "Traceback" not in logged


def test_it_answers_before_its_history_is_complete_and_stops_in_the_middle(tmp_path: Path) -> None:
    data = tmp_path / "data"
    started = time.time()
    # A large fleet: its history takes so long that a slow reader still sees it incomplete.
    fleet = ("--demo-nodes", str(NODES), "--demo-gpus", str(GPUS))
    with running("up", "--demo", *fleet, "--store-interval", "2s", "--data", str(data)) as (url, process):
        assert "gpuscope" in read(url)
        wait_for(lambda: shows_all_gpus(url), "the whole fleet in the live view")
        wait_for(lambda: ratio(url) > 0, "the beginning of the history")
        assert ratio(url) < 1
        targets = json.loads(read(f"{url}/api/v1/targets"))["data"]["activeTargets"]
        assert {target["scrapeInterval"] for target in targets} == {"2s"}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    with Store(data) as store:
        stored = store.select(named("up"), 0, 2**62)
    assert len(stored) > 0
    newest = max(int(series.timestamps[-1]) for series in stored) / 1000
    assert newest < started - LARGE_FLEET_STEP_SECONDS, "it did not fill in the rest before it stopped"


def test_a_demo_uses_nothing_of_this_machine(tmp_path: Path) -> None:
    """Neither processes, kubelet, container runtimes, Slurm, kernel log, driver nor host metrics."""
    record, data = tmp_path / "used", tmp_path / "data"
    program = (sys.executable, "-c", RECORD_USE, str(record))
    with running("up", "--demo", "--data", str(data), command=program) as (url, process):
        wait_for(lambda: json.loads(read(f"{url}/api/live"))["gpus"], "GPUs in the live view")
        wait_for(lambda: ratio(url) > 0, "the beginning of the history")
        json.loads(read(f"{url}/api/findings"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        used = set(record.read_text().splitlines())
        own = (str(tmp_path), f"/proc/{process.pid}/", "/dev/null", *OWN_MEMORY_LIMIT)
    assert any(path.startswith(str(data)) for path in used), "it does write its data"
    outside = ("/proc/", "/sys/", "/dev/", "/run/", "/var/", "load libnvidia", "socket.", "subprocess.", "os.")
    assert [path for path in used if path.startswith(outside) and not path.startswith(own)] == []


@pytest.mark.parametrize(
    "command",
    [
        ("up", "--demo", "--demo-nodes", "1", "--demo-gpus", "1"),
        ("server",),
        ("server", "--store", "http://127.0.0.1:9"),
    ],
    ids=["up", "server", "server over an engine"],
)
def test_every_server_says_its_version(command: tuple[str, ...], tmp_path: Path) -> None:
    with running(*command, "--data", str(tmp_path / "data")) as (url, _):
        metrics = read(f"{url}/metrics")
    assert f'gpuscope_build_info{{version="{__version__}"' in metrics
    if "--store" not in command:
        assert "\ngpuscope_received_samples_total 0\n" in metrics
