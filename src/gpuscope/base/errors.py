"""The exception hierarchy.

GpuscopeError
├── UsageError          a wrong flag, file or value: one sentence, exit 2
├── SourceError         a source cannot be read now; other sources are not affected
│   ├── SourceMissing   the source does not exist on this machine (no library, no command)
│   ├── NoAnswerYet     the source did not respond in time; it stays open, its last reading becomes stale
│   ├── SourceTimeout   a request to the source took longer than its time limit and was given up
│   └── UnusableAnswer  the source's answer was cut off, is too large, or has an unknown format
├── LibraryMissing      a shared system library is not installed: exit 1
├── NoGpuReadable       a one-shot command can read no GPU: exit 3
└── ServerUnreachable   a client command cannot reach its server: exit 4
"""

from __future__ import annotations


class GpuscopeError(Exception):
    exit_code = 1


class UsageError(GpuscopeError):
    exit_code = 2


class NotSupported(UsageError):
    """A file is right, and asks for something that cannot be done here."""


class SourceError(GpuscopeError):
    """`code` is a command's exit code or NVML's return code; -1 if there is none."""

    exit_code = 3

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


class SourceMissing(SourceError):
    pass


class NoAnswerYet(SourceError):
    """The message names the pending call."""


class SourceTimeout(SourceError):
    pass


class UnusableAnswer(SourceError):
    pass


class LibraryMissing(GpuscopeError):
    pass


class NoGpuReadable(GpuscopeError):
    exit_code = 3


class ServerUnreachable(GpuscopeError):
    exit_code = 4
