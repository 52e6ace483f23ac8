"""CPU, memory and parents from /proc, and signals only to the process that was looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.agent.owners.process_usage import ProcessUsageReader, parse_usage, send_signal


def fake_process(root: Path, pid: int, parent: int, ticks: int, command: bytes = b"python\0train.py\0") -> None:
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    rest = ["S", str(parent), *["0"] * 9, str(ticks), "5", *["0"] * 6, "777", "0", "100", *["0"] * 10]
    (folder / "stat").write_text(f"{pid} (a ) b) {' '.join(rest)}\n")
    (folder / "cmdline").write_bytes(command)


def test_cpu_is_the_share_of_a_core_between_two_readings(tmp_path: Path) -> None:
    now = [100.0]
    reader = ProcessUsageReader(str(tmp_path), lambda: now[0])
    fake_process(tmp_path, 40, 30, 100)
    fake_process(tmp_path, 30, 1, 0, b"")
    first = reader.read([40, 999])
    assert first[40].cpu_ratio is None
    assert (first[40].command_line, first[30].command_line) == ("python train.py", "a ) b")
    assert first[40].memory_bytes == 100 * os.sysconf("SC_PAGE_SIZE")
    assert set(first) == {30, 40}
    now[0] += 2
    fake_process(tmp_path, 40, 30, 100 + 3 * os.sysconf("SC_CLK_TCK"))
    assert reader.read([40])[40].cpu_ratio == pytest.approx(1.5)


def test_a_reused_pid_has_no_cpu_of_the_process_before(tmp_path: Path) -> None:
    now = [100.0]
    reader = ProcessUsageReader(str(tmp_path), lambda: now[0])
    fake_process(tmp_path, 40, 1, 100)
    reader.read([40])
    now[0] += 1
    stat = tmp_path / "40/stat"
    stat.write_text(stat.read_text().replace("777", "778"))
    assert reader.read([40])[40].cpu_ratio is None


@pytest.mark.parametrize("text", [b"", b"1 (x", b"1 (x) S 1", b"x" * 50])
def test_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="format"):
        parse_usage(text)


def test_this_process_and_its_signals() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        usage = ProcessUsageReader().read([child.pid])
        mine = usage[child.pid]
        assert mine.parent_pid == os.getpid()
        assert mine.uid == os.getuid()
        assert os.getpid() in usage, "ancestors are read too"
        assert "another one has its PID" in send_signal(child.pid, mine.start_ticks - 1, signal.SIGTERM)
        assert child.poll() is None
        assert send_signal(child.pid, mine.start_ticks, signal.SIGTERM) == ""
        assert child.wait() == -signal.SIGTERM
        assert "has ended" in send_signal(child.pid, mine.start_ticks, signal.SIGTERM)
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
