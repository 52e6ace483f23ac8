"""A file system whose reads take long: FUSE, spoken directly, so that the kernel itself blocks the reader.

Needs root and /dev/fuse. There is one file, `data`; each read of it is answered after a delay.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEADER = struct.Struct("<IIQQIIIHH")
REPLY = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
FILE_BYTES = 1 << 30
LOOKUP, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 3, 14, 15, 18, 25, 26
MNT_DETACH = 2


def is_possible() -> str:
    """Why not, or an empty string."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    return "" if Path("/dev/fuse").exists() else "/dev/fuse is missing"


@contextmanager
def slow_disk(folder: Path, read_seconds: float) -> Iterator[Path]:
    """The file to read."""
    device = os.open("/dev/fuse", os.O_RDWR)
    library = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read=4096".encode()
    if library.mount(b"slow", os.fsencode(folder), b"fuse", 0, options):
        os.close(device)
        raise OSError(ctypes.get_errno(), "mount")
    thread = threading.Thread(target=_serve, args=(device, read_seconds), daemon=True)
    thread.start()
    try:
        yield folder / "data"
    finally:
        library.umount2(os.fsencode(folder), MNT_DETACH)
        os.close(device)
        thread.join(timeout=10)


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o444
    return ATTRIBUTES.pack(node, FILE_BYTES, FILE_BYTES // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(opcode: int, node: int, body: bytes) -> bytes | int:
    """The body of the answer, or an error number."""
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHII6I", 7, 31, 4096, 0, 12, 9, 4096, 1, 1, 0, 0, 0, *(0,) * 6)
    if opcode == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + _attributes(2)
    if opcode == GETATTR:
        return struct.pack("<QII", 60, 0, 0) + _attributes(node)
    if opcode == OPEN:
        return struct.pack("<QII", 1, 0, 0)
    if opcode == READ:
        _, _, size = struct.unpack_from("<QQI", body)
        return bytes(size)
    return b"" if opcode in (RELEASE, FLUSH) else errno.ENOSYS


def _serve(device: int, read_seconds: float) -> None:
    while True:
        try:
            request = os.read(device, 1 << 17)
            _, opcode, unique, node, *_ = HEADER.unpack_from(request)
            if opcode == READ:
                time.sleep(read_seconds)
            answer = _answer(opcode, node, request[HEADER.size :])
            body, error = (b"", -answer) if isinstance(answer, int) else (answer, 0)
            os.write(device, REPLY.pack(REPLY.size + len(body), error, unique) + body)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return  # unmounted
