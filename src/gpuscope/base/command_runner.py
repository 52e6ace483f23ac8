"""Runs a command of the system with a time limit and a size limit: a driver's tool, Slurm's commands.

Input: the user's command (`squeue`, `ssh node7 squeue`, `sudo -n squeue`, split as a POSIX shell would, run
without one); output: the exit code with both outputs as text. A run past its time is killed with its whole
process group. It is here because several sources run commands.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, cast

from gpuscope.base.errors import SourceError, SourceMissing, SourceTimeout, UnusableAnswer, UsageError

MAX_STDOUT_BYTES = 16 << 20  # a thousand GPUs print 5 MB; output without end must not fill the memory
MAX_STDERR_BYTES = 1 << 16
GRACE_SECONDS = 2.0  # for a killed process to exit
POLL_SECONDS = 0.1

# Processes that cannot be killed, by command line. Not kept in a source, because a source that fails is opened
# again.
STUCK_PROCESSES: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
_RUNNING: set[subprocess.Popen[bytes]] = set()


LineFilter = Callable[[bytes], bytes]
"""Takes whole lines and returns the ones to keep."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def error_line(self) -> str:
        """The first line with text: some programs explain a failure on standard output."""
        for line in (*self.stderr.split("\n"), *self.stdout.split("\n")):
            words = " ".join("".join(c if c.isprintable() else " " for c in line).split())
            if words:
                return words[:200]
        return "it printed nothing"


class Command:
    """The command line in front of the program's own arguments; runs one at a time."""

    def __init__(
        self,
        text: str,
        timeout_seconds: float,
        *,
        program: str,
        if_missing: str,
        environment: Mapping[str, str] | None = None,
        max_stdout_bytes: int = MAX_STDOUT_BYTES,
    ) -> None:
        """`program` names it in messages; `if_missing` ends the sentence that says it is not installed."""
        try:
            self._argv = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(f"{program} command {text!r} cannot be split into words: {error}") from None
        if not self._argv:
            raise UsageError(f"the {program} command is empty; leave the setting out to use `{program}`")
        self._program = program
        self._if_missing = if_missing
        self._environment = environment
        self._max_stdout_bytes = max_stdout_bytes
        self._name = self._argv[0] if len(self._argv) == 1 else f"`{text}`"
        self._timeout = timeout_seconds or float("inf")

    def require(self) -> None:
        """Raises SourceMissing when there is nothing to run."""
        if shutil.which(self._argv[0]) is None:
            raise SourceMissing(f"{self._argv[0]} was not found; {self._if_missing}")

    def run(self, *arguments: str, keep: LineFilter | None = None) -> CommandResult:
        """Returns the result for any exit code. Raises SourceError if the command cannot be started or does not
        end in time.

        `keep` reduces standard output while it arrives, whole lines at a time.
        """
        self._refuse_while_stuck()
        try:
            process = subprocess.Popen(
                [*self._argv, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # own process group, killed as a whole; no terminal for a sudo prompt
            )
        except OSError as error:
            raise SourceMissing(f"cannot run {self._name}: {error.strerror or error}") from None
        _RUNNING.add(process)
        stdout_pipe, stderr_pipe = cast(IO[bytes], process.stdout), cast(IO[bytes], process.stderr)
        with stdout_pipe, stderr_pipe:
            try:
                stdout, stderr = self._read(process, stdout_pipe.fileno(), stderr_pipe.fileno(), keep)
            except BaseException:
                self._kill(process)
                raise
            finally:
                _RUNNING.discard(process)
        return CommandResult(
            process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
        )

    def run_checked(self, *arguments: str, keep: LineFilter | None = None) -> CommandResult:
        """Like `run`, and an exit code other than 0 is a SourceError that repeats the error_line."""
        answer = self.run(*arguments, keep=keep)
        if not answer.ok:
            raise self.failure(answer, *arguments)
        return answer

    def failure(self, answer: CommandResult, *arguments: str) -> SourceError:
        how = (
            f"exited with {answer.exit_code}"
            if answer.exit_code >= 0
            else f"was ended by signal {-answer.exit_code}"
        )
        return SourceError(f"{self._what(arguments)} {how}: {answer.error_line()}", code=answer.exit_code)

    def _what(self, arguments: tuple[str, ...]) -> str:
        return f"{self._name} {arguments[0].partition('=')[0]}" if arguments else self._name

    def _read(
        self, process: subprocess.Popen[bytes], stdout: int, stderr: int, keep: LineFilter | None
    ) -> tuple[bytearray, bytearray]:
        deadline = time.monotonic() + self._timeout
        printed = {stdout: bytearray(), stderr: bytearray()}
        reduced = 0  # how many bytes of standard output have gone through `keep`
        with selectors.DefaultSelector() as selector:
            for pipe in printed:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ended = process.poll() is not None
                ready = selector.select(max(0.0, min(POLL_SECONDS, deadline - time.monotonic())))
                # A helper left behind (ssh's connection master) may hold the pipes open for hours.
                if ended and not ready:
                    break
                for key, _ in ready:
                    self._take(selector, key.fd, printed[key.fd], key.fd == stdout)
                if keep is not None:
                    reduced = _reduce(printed[stdout], reduced, keep)
                if time.monotonic() >= deadline:
                    raise self._overdue()
        try:
            process.wait(max(0.0, deadline - time.monotonic()) if self._timeout != float("inf") else None)
        except subprocess.TimeoutExpired:
            raise self._overdue() from None
        return printed[stdout], printed[stderr]

    def _take(self, selector: selectors.BaseSelector, pipe: int, printed: bytearray, is_stdout: bool) -> None:
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            selector.unregister(pipe)
        elif is_stdout:
            printed += chunk
            if len(printed) > self._max_stdout_bytes:
                raise UnusableAnswer(
                    f"{self._program} printed more than {self._max_stdout_bytes >> 20} MiB, "
                    "more than any valid output"
                )
        else:
            printed += chunk[: MAX_STDERR_BYTES - len(printed)]

    def _overdue(self) -> SourceError:
        return SourceTimeout(f"{self._name} did not answer within {self._timeout:g} s and was killed")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        _kill_group(process)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            STUCK_PROCESSES[self._argv] = process  # blocked in a driver call, which no signal interrupts

    def _refuse_while_stuck(self) -> None:
        stuck = STUCK_PROCESSES.get(self._argv)
        if stuck is None:
            return
        if stuck.poll() is None:
            raise SourceError(
                f"{self._name} hangs and cannot be killed (process {stuck.pid}); no second process is started"
            )
        del STUCK_PROCESSES[self._argv]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # It has exited, or belongs to another user (sudo): wait for it in both cases.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@atexit.register
def _kill_running() -> None:
    """Threads that wait for a command end with this process; their commands would run on without it."""
    for process in tuple(_RUNNING):
        _kill_group(process)


def _reduce(printed: bytearray, reduced: int, keep: LineFilter) -> int:
    """Replaces the whole lines after `reduced` by what `keep` returns for them; returns where they end."""
    end = printed.rfind(b"\n", reduced) + 1
    if end <= reduced:
        return reduced
    printed[reduced:end] = wanted = keep(bytes(printed[reduced:end]))
    return reduced + len(wanted)
