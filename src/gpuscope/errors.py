"""Everything gpuscope raises on purpose.

GpuscopeError
├── UsageError          the user's flag, file or value is wrong: one sentence, exit 2
├── SourceError         a source cannot be read now; the rest goes on
│   ├── SourceMissing   it is not on this machine at all (no library, no command)
│   └── NoAnswerYet     it has not answered in time; it stays open, and its last reading grows old
├── LibraryMissing      a shared library of the system that a package needs is not installed: exit 1
├── NoGpuReadable       a one-shot command found no GPU: exit 3
└── ServerUnreachable   a client command could not reach its server: exit 4
"""

from __future__ import annotations


class GpuscopeError(Exception):
    exit_code = 1


class UsageError(GpuscopeError):
    exit_code = 2


class SourceError(GpuscopeError):
    """`code` is what the outside answered: a command's exit code, NVML's return code; -1 where it gave none."""

    exit_code = 3

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


class SourceMissing(SourceError):
    pass


class NoAnswerYet(SourceError):
    """Says what is being waited for."""


class LibraryMissing(GpuscopeError):
    pass


class NoGpuReadable(GpuscopeError):
    exit_code = 3


class ServerUnreachable(GpuscopeError):
    exit_code = 4
