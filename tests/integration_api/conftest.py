"""Real engines and one gpuscope with the same data, and gpuscope over them, for all tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import running_prometheus, running_victoria_metrics
from tests.integration_api.servers import Day, ask, recent_data, running_gpuscope, wait_for
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


@pytest.fixture(scope="session")
def over_prometheus(prometheus: str) -> Iterator[str]:
    with running_gpuscope(None, "--store", prometheus) as url:
        yield url


@pytest.fixture(scope="session")
def over_victoria_metrics(day: Day) -> Iterator[str]:
    # It hides the newest 30 s and remembers answers; both would make it differ from itself.
    flags = ("-search.latencyOffset=0s", "-search.disableCache")
    with running_victoria_metrics(flags=flags) as engine, running_gpuscope(None, "--store", engine) as url:
        fill(engine, day.series)
        ask(engine, "/internal/force_flush")
        last = {"query": "count(last_over_time(watts[2h]))", "time": day.end}
        wait_for("the data to be found", lambda: ask(url, "/api/v1/query", last).body["data"]["result"])
        yield url
