"""Reads single values of sysfs: a file that is not there, not readable or not in its format is ABSENT.

A driver may answer `N/A (no PMA)` or refuse a counter with EINVAL: both mean that it does not have the number.
"""

from __future__ import annotations

import os
import re
from typing import Final

from gpuscope.agent.sources.host.proc_files import valid_text
from gpuscope.model.readings import ABSENT, Maybe

MAX_FILE_BYTES: Final = 4096
MAX_TEXT_CHARACTERS: Final = 64

_NUMBER = re.compile(r"\d{1,20}\Z", re.ASCII)


def read_text(path: str) -> Maybe[str]:
    # os.open and os.read: a file object costs three times as much, hundreds of times a read.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ABSENT
    try:
        return os.read(handle, MAX_FILE_BYTES).decode("utf-8", "surrogateescape").strip()
    except OSError:
        return ABSENT
    finally:
        os.close(handle)


def read_label(path: str) -> str:
    """For a label: empty if there is none."""
    text = read_text(path)
    return "" if text is ABSENT else valid_text(text)[:MAX_TEXT_CHARACTERS]


def read_number(path: str) -> Maybe[int]:
    text = read_text(path)
    return int(text) if text is not ABSENT and _NUMBER.match(text) else ABSENT


def list_names(path: str) -> list[str]:
    """In order; empty if there is no such folder."""
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - a Path for each of hundreds of names costs more
    except OSError:
        return []
