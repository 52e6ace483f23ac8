"""Running the command: wrappers, exit codes, time limits, and processes that cannot be killed."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base import command_runner as command_module
from gpuscope.base.command_runner import Command, CommandResult
from gpuscope.base.errors import SourceError, SourceMissing, UsageError
from gpuscope.vendors.nvidia.nvidia_smi.smi_source import SmiCommand
from tests.waiting import wait_for


def python(code: str, timeout: float = 60.0) -> SmiCommand:
    return SmiCommand(shlex.join([sys.executable, "-S", "-c", code]), timeout)


def is_gone(pid: int) -> bool:
    """Dead, reaped or not; the child's SIGKILL may take a moment to arrive."""

    def is_dead() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state in "ZX"

    return wait_for(is_dead, f"the end of process {pid}")


def test_arguments_follow_the_users_words_and_no_shell_sees_them(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    wrapped = SmiCommand(f"{sys.executable} -S -c {shlex.quote(code)} 'node 7' \"$HOME\"", 60.0)
    assert wrapped.run("-q", "a;b").stdout == "['node 7', '$HOME', '-q', 'a;b']\n"


@pytest.mark.parametrize("text", ["", "   ", "ssh 'node"])
def test_a_command_that_is_none_is_the_users_mistake(text: str) -> None:
    with pytest.raises(UsageError, match="command"):
        SmiCommand(text, 1.0)


def test_a_missing_command_is_reported_with_the_fix() -> None:
    missing = SmiCommand("no-such-nvidia-smi", 1.0)
    with pytest.raises(SourceMissing, match="no-such-nvidia-smi was not found; install"):
        missing.require()
    with pytest.raises(SourceMissing, match="cannot run no-such-nvidia-smi: No such file"):
        missing.run("-L")


def test_exit_code_and_error_line_make_one_sentence() -> None:
    failing = python("import sys; print('\\n\\tGPU is\\x07 lost.  Reboot\\nmore'); sys.exit(255)")
    with pytest.raises(SourceError, match=r"-q exited with 255: GPU is lost\. Reboot$") as caught:
        failing.run_checked("-q")
    assert caught.value.code == 255


def test_a_signal_is_named() -> None:
    with pytest.raises(SourceError, match="was ended by signal 9"):
        python("import os; os.kill(os.getpid(), 9)").run_checked("-q")


def test_output_that_is_no_text_is_still_read() -> None:
    result = python("import os; os.write(1, b'a\\xff\\x00\\n'); os.write(2, b'noise\\xfe' * 100000)").run()
    assert result.ok
    assert result.stdout == "a�\x00\n"
    assert result.error_line().startswith("noise")
    assert len(result.stderr) <= command_module.MAX_STDERR_BYTES


def test_a_run_past_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    code = (  # parent and child tell who they are and stay, both holding the pipes
        f"import os, time\nos.fork()\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)"
    )
    with pytest.raises(SourceError, match="did not answer within 2 s and was killed") as caught:
        python(code, timeout=2.0).run("-q")
    assert caught.value.code == -1
    pids = [int(line) for line in log.read_text().split()]
    assert len(pids) == 2
    assert all(map(is_gone, pids))


def test_no_time_is_no_limit() -> None:
    assert python("print(1)", timeout=0).run().stdout == "1\n"


def test_a_background_child_does_not_delay_the_result() -> None:
    """ssh leaves a connection master that keeps the pipes open."""
    code = (
        "import os,sys,time\n"
        "pid = os.fork()\n"
        "if pid == 0: os.setsid(); time.sleep(600)\n"
        "print(pid, flush=True); os._exit(0)"
    )
    result = python(code, timeout=30.0).run()
    os.kill(int(result.stdout), signal.SIGKILL)
    assert result.ok


def test_endless_output_is_cut_off() -> None:
    text = shlex.join([sys.executable, "-S", "-c", "while True: print('rubbish' * 1000)"])
    endless = Command(text, 60.0, program="a test", if_missing="it is", max_stdout_bytes=1 << 20)
    with pytest.raises(SourceError, match="a test printed more than 1 MiB"):
        endless.run()


def test_no_second_run_is_started_beside_one_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killing has no effect, as for a process that hangs in the kernel."""
    monkeypatch.setattr(command_module, "GRACE_SECONDS", 0.01)
    real_kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, signal: None)
    hanging = python("import time; time.sleep(600)", timeout=0.05)
    with pytest.raises(SourceError, match="did not answer"):
        hanging.run("-q")
    (stuck,) = command_module.STUCK_PROCESSES.values()
    again = python("import time; time.sleep(600)", timeout=0.05)  # the source was opened anew
    with pytest.raises(SourceError, match=f"cannot be killed .process {stuck.pid}.; no second process"):
        again.run("-q")
    real_kill(stuck.pid, signal.SIGKILL)
    stuck.wait()
    with pytest.raises(SourceError, match="did not answer"):
        again.run("-q")
    (stuck,) = command_module.STUCK_PROCESSES.values()
    real_kill(stuck.pid, signal.SIGKILL)
    stuck.wait()
    command_module.STUCK_PROCESSES.clear()


@given(st.text(), st.text())
def test_an_error_line_is_one_short_printable_line(stdout: str, stderr: str) -> None:
    error_line = CommandResult(1, stdout, stderr).error_line()
    assert 0 < len(error_line) <= 200
    assert error_line.isprintable()
