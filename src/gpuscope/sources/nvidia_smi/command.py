"""Runs the nvidia-smi command and returns its output.

Input: the configured command (`nvidia-smi`, `ssh node7 nvidia-smi`, `sudo -n nvidia-smi`), split like a POSIX
shell does but run without a shell; output: exit code, stdout and stderr. A run that exceeds its time is killed
with its process group. Over ssh the remote shell splits the arguments again, so no argument may contain a
character that is special to a shell.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, cast

from gpuscope.errors import SourceError, SourceMissing, UsageError

MAX_STDOUT_BYTES = 16 << 20  # output for a thousand GPUs has 5 MB; endless output must not fill the memory
MAX_STDERR_BYTES = 1 << 16
GRACE_SECONDS = 2.0  # time for a killed run to end
POLL_SECONDS = 0.1

# Runs that no signal ends, by command line. Not kept in the source, because a failed source is opened again.
_STUCK: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def error_line(self) -> str:
        """The first line with text: nvidia-smi prints errors to stdout or stderr."""
        for line in (*self.stderr.split("\n"), *self.stdout.split("\n")):
            words = " ".join("".join(c if c.isprintable() else " " for c in line).split())
            if words:
                return words[:200]
        return "it printed nothing"


class Command:
    """The command without nvidia-smi's own arguments; runs one at a time."""

    def __init__(self, text: str, timeout_seconds: float) -> None:
        try:
            self._argv = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(f"nvidia-smi command {text!r} cannot be split into words: {error}") from None
        if not self._argv:
            raise UsageError("the nvidia-smi command is empty; leave the setting out to use `nvidia-smi`")
        self._name = self._argv[0] if len(self._argv) == 1 else f"`{text}`"
        self._timeout = timeout_seconds or float("inf")

    def require(self) -> None:
        """Raises SourceMissing if the program does not exist."""
        if shutil.which(self._argv[0]) is None:
            raise SourceMissing(
                f"{self._argv[0]} was not found; install the NVIDIA driver's utilities or set"
                " nvidia_smi_command to its path"
            )

    def run(self, *arguments: str) -> CommandResult:
        """Returns any exit code. Raises SourceError if the run cannot be started or exceeds its time."""
        self._refuse_while_stuck()
        try:
            process = subprocess.Popen(
                [*self._argv, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a process group to kill, and no terminal on which sudo could prompt
            )
        except OSError as error:
            raise SourceMissing(f"cannot run {self._name}: {error.strerror or error}") from None
        stdout_pipe, stderr_pipe = cast(IO[bytes], process.stdout), cast(IO[bytes], process.stderr)
        with stdout_pipe, stderr_pipe:
            try:
                stdout, stderr = self._read(process, stdout_pipe.fileno(), stderr_pipe.fileno())
            except BaseException:
                self._kill(process)
                raise
        return CommandResult(
            process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
        )

    def run_checked(self, *arguments: str) -> CommandResult:
        """Like `run`, but raises SourceError with the error line for an exit code other than 0."""
        result = self.run(*arguments)
        if not result.ok:
            raise self.failure(result, *arguments)
        return result

    def failure(self, result: CommandResult, *arguments: str) -> SourceError:
        how = (
            f"exited with {result.exit_code}"
            if result.exit_code >= 0
            else f"was ended by signal {-result.exit_code}"
        )
        return SourceError(f"{self._what(arguments)} {how}: {result.error_line()}", code=result.exit_code)

    def _what(self, arguments: tuple[str, ...]) -> str:
        return f"{self._name} {arguments[0].partition('=')[0]}" if arguments else self._name

    def _read(self, process: subprocess.Popen[bytes], stdout: int, stderr: int) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + self._timeout
        printed = {stdout: bytearray(), stderr: bytearray()}
        with selectors.DefaultSelector() as selector:
            for pipe in printed:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ended = process.poll() is not None
                ready = selector.select(max(0.0, min(POLL_SECONDS, deadline - time.monotonic())))
                # A background child (ssh's connection master) may hold the pipes open for hours.
                if ended and not ready:
                    break
                for key, _ in ready:
                    _append(selector, key.fd, printed[key.fd], key.fd == stdout)
                if time.monotonic() >= deadline:
                    raise self._timeout_error()
        try:
            process.wait(max(0.0, deadline - time.monotonic()) if self._timeout != float("inf") else None)
        except subprocess.TimeoutExpired:
            raise self._timeout_error() from None
        return bytes(printed[stdout]), bytes(printed[stderr])

    def _timeout_error(self) -> SourceError:
        return SourceError(f"{self._name} did not answer within {self._timeout:g} s and was killed")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        # It has ended, or belongs to another user (sudo); wait for it in both cases.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            _STUCK[self._argv] = process  # blocked in a driver call in the kernel, which no signal ends

    def _refuse_while_stuck(self) -> None:
        stuck = _STUCK.get(self._argv)
        if stuck is None:
            return
        if stuck.poll() is None:
            raise SourceError(
                f"{self._name} hangs and cannot be killed (process {stuck.pid}); no second process is started"
            )
        del _STUCK[self._argv]


def _append(selector: selectors.BaseSelector, pipe: int, printed: bytearray, is_stdout: bool) -> None:
    chunk = os.read(pipe, 1 << 16)
    if not chunk:
        selector.unregister(pipe)
    elif is_stdout:
        printed += chunk
        if len(printed) > MAX_STDOUT_BYTES:
            raise SourceError(
                f"nvidia-smi printed more than {MAX_STDOUT_BYTES >> 20} MiB, which cannot be its own output"
            )
    else:
        printed += chunk[: MAX_STDERR_BYTES - len(printed)]
