"""One Prometheus and one gpuscope with the same data, for all tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import running_prometheus
from tests.integration_api.servers import Day, recent_data, running_gpuscope
from tests.promql.prometheus import fill


@pytest.fixture(scope="session")
def day() -> Day:
    return recent_data()


@pytest.fixture(scope="session")
def prometheus(day: Day) -> Iterator[str]:
    with running_prometheus() as url:
        fill(url, day.series)
        yield url


@pytest.fixture(scope="session")
def gpuscope(day: Day, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_gpuscope(tmp_path_factory.mktemp("data") / "store") as url:
        fill(url, day.series)
        yield url
