from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.login.support import ANN, PASSWORD, Site


@pytest.fixture
def empty_site(tmp_path: Path) -> Site:
    return Site(tmp_path / "data")


@pytest.fixture
def site(empty_site: Site) -> Site:
    empty_site.users.add(ANN, PASSWORD)
    return empty_site
