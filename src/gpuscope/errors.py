"""The exceptions that gpuscope raises.

GpuscopeError
├── UsageError          a flag, file or value is wrong: one sentence, exit 2
├── SourceError         a source cannot be read now; other sources are not affected
│   ├── SourceMissing   the source does not exist on this machine (no library, no command)
│   └── NoAnswerYet     the source did not answer in time; it stays open, and its last reading grows old
├── LibraryMissing      a shared library that a package needs is not installed: exit 1
├── NoGpuReadable       a one-shot command found no GPU: exit 3
└── ServerUnreachable   a client command could not reach its server: exit 4
"""

from __future__ import annotations


class GpuscopeError(Exception):
    exit_code = 1


class UsageError(GpuscopeError):
    exit_code = 2


class SourceError(GpuscopeError):
    """`code` is the exit code of a command or NVML's return code; -1 if there is none."""

    exit_code = 3

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


class SourceMissing(SourceError):
    pass


class NoAnswerYet(SourceError):
    """The message names the pending call."""


class LibraryMissing(GpuscopeError):
    pass


class NoGpuReadable(GpuscopeError):
    exit_code = 3


class ServerUnreachable(GpuscopeError):
    exit_code = 4
