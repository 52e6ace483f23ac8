"""Running `dcgmi` once: its standard output, or a sentence that says what is wrong and what to do.

Every run has a time-out: a stopped host engine never answers and never hangs up. The whole process group is
killed, because the command may be a wrapper (sudo, docker exec) whose child would live on.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence

from gpuscope.errors import SourceError, SourceMissing, UsageError
from gpuscope.settings import Settings
from gpuscope.sources.dcgm.plan import DcgmSettings

NO_ENGINE = 235  # 256 - 21: DCGM's exit codes are its (negative) return codes

_HINTS = {
    NO_ENGINE: "start it (systemctl start nvidia-dcgm, or nv-hostengine), or name it with --dcgm-host",
    221: "the host engine sees no GPU; restart it after the driver is loaded",
}


def dcgmi_command(settings: Settings) -> list[str]:
    command = settings.view(DcgmSettings).dcgmi_command
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--dcgmi-command: {command!r}: {error}") from None
    if not words:
        raise UsageError("--dcgmi-command is empty; give the command, for instance dcgmi")
    return words


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """The command in a process group of its own, with both outputs as pipes."""
    # With CUDA_VISIBLE_DEVICES set, dcgmi prints twelve lines of warning on standard error at every start.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment | {"LC_ALL": "C"},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise SourceMissing(
            f"{command[0]} is not here; install datacenter-gpu-manager, or say where it is with --dcgmi-command"
        ) from None
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run: {error.strerror}") from None


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the command and what it started, and reaps it."""
    if process.poll() is None:  # once reaped, its number may be somebody else's
        # A setuid wrapper's group is not ours to kill; it ends when its pipe closes.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel; reaped when it comes out
        process.wait(5)


def run(command: Sequence[str], timeout_seconds: float) -> str:
    process = start(command)
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{_said(command)} gave no answer in {timeout_seconds:g} s; the DCGM host engine may hang"
        ) from None
    finally:
        kill(process)
    if process.returncode != 0:
        raise failure(command, process.returncode, output + errors)
    return output.decode("utf-8", "replace")


def failure(command: Sequence[str], code: int, output: bytes) -> SourceError:
    """What the command said about its end, in one sentence."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("Error")] or lines
    ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    sentence = f"{_said(command)} {ending}"
    if said:
        sentence += ": " + said[-1][:300].rstrip(".")
    if code in _HINTS:
        sentence += "; " + _HINTS[code]
    return SourceError(sentence, code)


def _said(command: Sequence[str]) -> str:
    """The command without its long list of ids."""
    words = [word for word in command if len(word) < 60]
    return "`" + " ".join(words[:3]) + "`"
