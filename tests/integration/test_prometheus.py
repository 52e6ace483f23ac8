"""A real Prometheus scrapes the agent as OpenMetrics: every value arrives without a warning."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from gpuscope.model.exposition.parser import parse_once
from tests.engines import running_prometheus
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import Agent, of_gpu, running_agent
from tests.waiting import wait_for

__all__ = ["driver"]

# Prometheus' counters of samples that it drops from a scrape.
COMPLAINTS = (
    "prometheus_target_scrapes_exceeded_sample_limit_total",
    "prometheus_target_scrapes_sample_duplicate_timestamp_total",
    "prometheus_target_scrapes_sample_out_of_bounds_total",
    "prometheus_target_scrapes_sample_out_of_order_total",
)


def ask(base: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.load(answer)["data"]


def config(agent: Agent) -> str:
    address = agent.base.removeprefix("http://")
    return f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: gpuscope
    static_configs: [{{targets: ["{address}"]}}]
"""


SNAPSHOTS = "gpuscope_agent_snapshots_total[]"
SNAPSHOT_AGE = "gpuscope_agent_snapshot_age_seconds[]"


def until(condition: Callable[[], Any]) -> Any:
    return wait_for(condition, "Prometheus")


def pairs_of(labels: dict[str, str]) -> str:
    """Format a series as in the exposition, with labels sorted by name."""
    kept = {name: value for name, value in labels.items() if name not in ("__name__", "instance", "job")}
    return labels["__name__"] + json.dumps(sorted((name, value) for name, value in kept.items() if value))


def ours_by_pairs(text: str) -> dict[str, float]:
    found = {}
    for pairs, _, value in parse_once(text):
        labels = dict(pairs)
        assert "job" not in labels, "Prometheus has a job label of its own, and would rename ours"
        found[pairs_of({name: text for name, text in labels.items() if text})] = value
    return found


def check(agent: Agent, needs: str) -> None:
    with running_prometheus(config(agent)) as prometheus:
        up = until(lambda: ask(prometheus, "query", query='up{job="gpuscope"} == 1')["result"])
        assert len(up) == 1
        served: dict[str, set[float]] = {}  # all values of /metrics while Prometheus scraped
        began = time.time()

        def stored_scrape() -> dict[str, float] | None:
            """The newest scrape, if this test has seen the same snapshot; on a busy machine it misses some."""
            _note(agent, served)
            if _scraped_at(prometheus) <= began + 1:
                return None
            taken = ask(prometheus, "query", query='{job="gpuscope",__name__=~"gpuscope_.+|node_.+"}')["result"]
            found = {pairs_of(series["metric"]): float(series["value"][1]) for series in taken}
            return found if found.get(SNAPSHOTS) in served[SNAPSHOTS] else None

        stored = until(stored_scrape)
        assert 0 <= stored.pop(SNAPSHOT_AGE) < 30, "each scrape has its own"
        wrong = {
            name: (value, served.get(name))
            for name, value in stored.items()
            if value not in served.get(name, ())
        }
        assert wrong == {}
        assert len(stored) > 0.9 * len(served)
        assert needs in " ".join(stored)
        check_how_it_was_taken(prometheus, len(stored))


def _note(agent: Agent, served: dict[str, set[float]]) -> None:
    for name, value in ours_by_pairs(agent.text()).items():
        served.setdefault(name, set()).add(value)


def _scraped_at(prometheus: str) -> float:
    """Return the time of the newest stored scrape."""
    result = ask(prometheus, "query", query='timestamp(up{job="gpuscope"})')["result"]
    return float(result[0]["value"][1]) if result else 0.0


def check_how_it_was_taken(prometheus: str, samples: int) -> None:
    (target,) = ask(prometheus, "targets")["activeTargets"]
    assert target["health"] == "up"
    assert target["lastError"] == ""
    # Only OpenMetrics has the type "info".
    metadata = ask(prometheus, "targets/metadata", metric="gpuscope_gpu")
    assert [entry["type"] for entry in metadata] == ["info"]
    scraped = ask(prometheus, "query", query="scrape_samples_scraped")["result"][0]["value"][1]
    kept = ask(prometheus, "query", query="scrape_samples_post_metric_relabeling")["result"][0]["value"][1]
    assert int(scraped) == int(kept) >= 0.9 * samples
    with urllib.request.urlopen(f"{prometheus}/metrics") as answer:
        own = answer.read().decode()
    for name in COMPLAINTS:
        assert f"\n{name} 0\n" in own


@pytest.mark.engine("prometheus")
def test_prometheus_scrapes_the_simulated_fleet() -> None:
    with running_agent("--source", "demo", "--interval", "1s") as agent:
        agent.until(lambda series: of_gpu(series, "gpuscope_gpu_up") == 1)
        check(agent, "simulated")


@pytest.mark.engine("prometheus")
def test_prometheus_scrapes_values_of_nvml(driver: FakeDriver) -> None:
    driver.freeze()
    driver.processes(0, [Process(1000 + i, name=name) for i, name in enumerate(('q"\\', "new\nline", "训练"))])
    with running_agent("--source", "nvml", "--interval", "1s", env=driver.env) as agent:
        agent.until(lambda series: of_gpu(series, "gpuscope_gpu_up") == 1)
        check(agent, "gpuscope_process_memory_bytes")
