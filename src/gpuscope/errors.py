"""Everything gpuscope raises on purpose.

GpuscopeError
├── UsageError          the user's flag, file or value is wrong: one sentence, exit 2
├── SourceError         a source cannot be read now; the rest goes on
│   └── SourceMissing   it is not on this machine at all (no library, no command)
├── NoGpuReadable       a one-shot command found no GPU: exit 3
└── ServerUnreachable   a client command could not reach its server: exit 4
"""

from __future__ import annotations


class GpuscopeError(Exception):
    exit_code = 1


class UsageError(GpuscopeError):
    exit_code = 2


class SourceError(GpuscopeError):
    exit_code = 3


class SourceMissing(SourceError):
    pass


class NoGpuReadable(GpuscopeError):
    exit_code = 3


class ServerUnreachable(GpuscopeError):
    exit_code = 4
