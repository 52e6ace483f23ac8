"""A started store whose clock a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.history.store import Store, StoreOptions
from tests.store.support import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Iterator[Store]:
    with Store(tmp_path, StoreOptions(max_ahead_ms=3_600_000), clock) as opened:
        opened.start()
        yield opened
