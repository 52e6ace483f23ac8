"""Closes the databases that these tests leave open to imitate a killed process."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _close_databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    connect = sqlite3.connect
    with contextlib.ExitStack() as databases:
        monkeypatch.setattr(
            sqlite3,
            "connect",
            lambda *path, **options: databases.enter_context(contextlib.closing(connect(*path, **options))),
        )
        yield
