"""Reads a file that a user has named, replaces a file at once, and appends whole lines to a log.

Only a regular file of limited size is read. A named pipe, a device or a folder raises OSError at once, instead
of blocking or being read without end; so does a file larger than `max_bytes`. The error's `strerror` has the
reason in words, as for any OSError.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

MAX_TEXT_FILE_BYTES = 4 << 20
MAX_SECRET_BYTES = 1 << 20
"""Of a password, token or certificate file."""
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a named pipe and not a regular file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device and not a regular file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device and not a regular file"),
)


def read_regular_file(path: Path, max_bytes: int = MAX_TEXT_FILE_BYTES) -> bytes:
    # Without O_NONBLOCK, opening a named pipe waits for a writer. It changes nothing for a regular file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)
        file = os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise
    with file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MiB", str(path))
    return content


def read_regular_text(path: Path, max_bytes: int = MAX_TEXT_FILE_BYTES, errors: str = "strict") -> str:
    """As `Path.read_text`: UTF-8, with a newline at every end of line; UnicodeDecodeError by default."""
    text = read_regular_file(path, max_bytes).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_regular_file(path: Path, max_bytes: int = MAX_SECRET_BYTES) -> Path:
    """The path, for a library that opens the file itself; OSError as above, also if it does not exist."""
    status = path.stat()
    _refuse_others(status.st_mode, path)
    if status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MiB", str(path))
    return path


def _refuse_others(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    for is_kind, number, reason in _KINDS:
        if is_kind(mode):
            raise OSError(number, reason, str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


# Replaces a file atomically: a reader sees the old or the new content, also after a crash.
#
# The temporary file is in the same folder; its name starts with a dot and ends in `.tmp`, so that readers of
# `*.prom` or `*.json` ignore it. On an error the old file stays and the temporary file is removed.

PRIVATE = 0o600
WORLD_READABLE = 0o644


def write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """The umask does not change `mode`."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename durable: without it, the old file may return after a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Appends a line to an open log file, all of it or nothing.
#
# A full disk takes the first part of a line. Without its end the next line would be unreadable, so the part
# is removed and the caller gets OSError. A pipe or a terminal cannot be shortened: there the part stays.


def append_whole_line(file: int, line: bytes) -> None:
    """`file` is a descriptor opened with O_APPEND, and no other process writes to it. OSError if it is full."""
    before = os.fstat(file)
    if os.write(file, line) == len(line):
        return
    if stat.S_ISREG(before.st_mode):
        os.ftruncate(file, before.st_size)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
