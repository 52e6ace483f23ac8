"""Appends a line to an open log file, all of it or nothing.

A full disk takes the first part of a line. Without its end the next line would be unreadable, so the part is
removed and the caller gets OSError. A pipe or a terminal cannot be shortened: there the part stays.
"""

from __future__ import annotations

import errno
import os
import stat


def append_whole_line(file: int, line: bytes) -> None:
    """`file` is a descriptor opened with O_APPEND, and no other process writes to it. OSError if it is full."""
    before = os.fstat(file)
    if os.write(file, line) == len(line):
        return
    if stat.S_ISREG(before.st_mode):
        os.ftruncate(file, before.st_size)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
