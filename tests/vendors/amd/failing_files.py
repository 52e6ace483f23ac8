"""A guard that makes the reading of chosen files fail as the kernel does it: a folder of a test cannot."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping


class FailingFiles:
    def __init__(self, codes: Mapping[str, int] | None = None, skipped: Collection[str] = ()) -> None:
        """`codes` are errno by file; "*" is any file."""
        self.codes = dict(codes or {})
        self.entered: list[str] = []
        self._skipped = skipped

    def is_skipped(self, name: str) -> bool:
        return name in self._skipped

    def enter(self, name: str) -> None:
        self.entered.append(name)
        code = self.codes.get(name, self.codes.get("*"))
        if code is not None:
            raise OSError(code, os.strerror(code))

    def leave(self, entered: None) -> None: ...
