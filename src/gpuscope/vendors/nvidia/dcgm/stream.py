"""One running `dcgmi dmon`: reads its rows without blocking and without a thread.

The latest row of each entity is kept with its arrival time, so an incomplete sample does no harm. The stream
raises when the command has ended and when no row arrived for `silence_seconds`: a hung host engine neither
answers nor closes the connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from gpuscope.base.errors import SourceError, SourceMissing, UsageError
from gpuscope.base.settings import Settings
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity, DmonRow, DmonTable
from gpuscope.vendors.nvidia.dcgm.plan import DcgmSettings

# Runs `dcgmi` once: returns its standard output or raises an error with reason and fix.
#
# Every run has a time limit, because a stopped host engine neither answers nor closes the connection. The
# whole process group is killed, because the command may be a wrapper (sudo, docker exec) whose child would
# keep running.

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
        raise UsageError("--dcgmi-command is empty; set it to a command, for example dcgmi")
    return words


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the command in its own process group, with both outputs as pipes."""
    # With CUDA_VISIBLE_DEVICES, dcgmi prints twelve lines of warnings to standard error at every start.
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
            f"{command[0]} was not found; install datacenter-gpu-manager, or set its path with --dcgmi-command"
        ) from None
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run: {error.strerror}") from None


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the command with its children, and reaps it."""
    if process.poll() is None:  # the PID of a reaped process may belong to another process
        # We may not kill the group of a setuid wrapper; it ends when its pipe closes.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # blocked in the kernel; reaped when it ends
        process.wait(5)


def run(command: Sequence[str], timeout_seconds: float) -> str:
    process = start(command)
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{_command_text(command)} did not answer in {timeout_seconds:g} s; the DCGM host engine may hang"
        ) from None
    finally:
        kill(process)
    if process.returncode != 0:
        raise failure(command, process.returncode, output + errors)
    return output.decode("utf-8", "replace")


def failure(command: Sequence[str], code: int, output: bytes) -> SourceError:
    """The command's exit and its error message in one sentence."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error")] or lines
    ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    sentence = f"{_command_text(command)} {ending}"
    if errors:
        sentence += ": " + errors[-1][:300].rstrip(".")
    if code in _HINTS:
        sentence += "; " + _HINTS[code]
    return SourceError(sentence, code)


def _command_text(command: Sequence[str]) -> str:
    """The command without long lists of ids."""
    words = [word for word in command if len(word) < 60]
    return "`" + " ".join(words[:3]) + "`"


MAX_LINE_BYTES = 1 << 20
MAX_ERROR_BYTES = 8192
QUIET_SECONDS = 0.05
FIRST_QUIET_SECONDS = 0.2  # once per start, so that no GPU is missing from the first reading
MAX_ENTITIES = 4096
CHUNK_BYTES = 65536
MAX_CHUNKS = 64  # per read, so that endless output does not block the reader


@dataclass(frozen=True, slots=True)
class Arrived:
    row: DmonRow
    at: float  # monotonic


class DmonStream:
    def __init__(self, command: Sequence[str], field_ids: Sequence[int], silence_seconds: float) -> None:
        self.field_ids = tuple(field_ids)
        self._command = tuple(command)
        self._silence = silence_seconds
        self._table = DmonTable(field_ids)
        self._rows: dict[DmonEntity, Arrived] = {}
        self._unfinished = b""
        self._errors = b""  # the end of standard error, and error lines of standard output
        self._last_row_at = time.monotonic()
        self._process = start(command)
        self._out, self._err = (_unblocked(pipe) for pipe in (self._process.stdout, self._process.stderr))
        self._poll = select.poll()  # unlike select() it takes any descriptor number
        self._poll.register(self._out, select.POLLIN)

    @property
    def rejected(self) -> int:
        return self._table.rejected

    def wait_for_rows(self, seconds: float) -> None:
        """Waits for the first rows; raises if the stream ends or no row arrives."""
        deadline = time.monotonic() + seconds
        while not self._rows:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._silent(seconds)
            self._more_within(min(left, 0.5))
        # A sample has no end mark: it is complete when its first entity repeats or no more rows arrive.
        entities = 0
        while len(self._rows) > entities:
            entities = len(self._rows)
            self._more_within(FIRST_QUIET_SECONDS)

    def rows(self) -> list[DmonRow]:
        """The latest row of every entity, without entities that get no rows any more."""
        self._drain()
        self._finish_line()
        now = time.monotonic()
        if now - self._last_row_at > self._silence:
            raise self._silent(now - self._last_row_at)
        return [arrived.row for arrived in self._rows.values() if now - arrived.at <= self._silence]

    def close(self) -> None:
        kill(self._process)

    def _finish_line(self) -> None:
        """Waits briefly for the rest of an incomplete line."""
        if self._unfinished:
            self._more_within(QUIET_SECONDS)

    def _more_within(self, seconds: float) -> None:
        if self._poll.poll(seconds * 1000):
            self._drain()

    def _drain(self) -> None:
        self._errors = (self._errors + _read_all(self._err)[0])[-MAX_ERROR_BYTES:]
        data, ended = _read_all(self._out)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > MAX_LINE_BYTES:
            raise SourceError(f"dcgmi dmon printed more than {MAX_LINE_BYTES} bytes without a line end")
        for line in lines:
            self._take(line)
        if ended:
            raise self._ended()

    def _take(self, line: bytes) -> None:
        row = self._table.feed(line.decode("utf-8", "replace"))
        if row is not None:
            self._last_row_at = time.monotonic()
            self._rows[row.entity] = Arrived(row, self._last_row_at)
            if len(self._rows) > MAX_ENTITIES:
                raise SourceError(f"dcgmi dmon printed more than {MAX_ENTITIES} GPUs and instances")
        elif line.startswith(b"Error"):  # DCGM 2 and a missing host engine print errors to standard output
            self._errors = (self._errors + line + b"\n")[-MAX_ERROR_BYTES:]

    def _ended(self) -> SourceError:
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:  # it closed its output but still runs
            code = -1
        self._errors += _read_all(self._err)[0]
        return failure(self._command, code, self._errors)

    def _silent(self, seconds: float) -> SourceError:
        sentence = f"dcgmi dmon printed no row for {seconds:.0f} s"
        if self.rejected:
            return SourceError(f"{sentence}; {self.rejected} lines did not fit its own header")
        return SourceError(f"{sentence}; the DCGM host engine may hang (systemctl restart nvidia-dcgm)")


def _unblocked(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise TypeError("the command was started without its pipes")
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _read_all(descriptor: int) -> tuple[bytes, bool]:
    """The available bytes of a non-blocking pipe, and whether its writer has closed it."""
    chunks: list[bytes] = []
    for _ in range(MAX_CHUNKS):
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            break
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
    return b"".join(chunks), False
