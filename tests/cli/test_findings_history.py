"""A server that starts after a GPU was lost: its findings come from the history, its own or a Prometheus'."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.model.exposition.parser import parse_once
from gpuscope.model.series import Series
from tests.cli.test_server import eventually, server, vector
from tests.engines import engine, running_prometheus
from tests.integration.agent_process import Agent, of_gpu, running_agent
from tests.ports import free_port
from tests.promql.prometheus import fill

DEMO = ("--source", "demo", "--demo-gpus", "4", "--demo-model", "4090", "--node", "a")


def findings(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/api/findings", timeout=30) as answer:
        return {one["kind"]: one for one in json.load(answer)["findings"]}


@contextmanager
def scraped_agent(address: str) -> Iterator[Agent]:
    """One job on four GPUs; in ten seconds GPU 3 falls off the bus. Whoever scrapes it runs already."""
    scenarios = ("--scenario", "one-works", "--scenario", "xid79@+10s")
    with running_agent(*DEMO, "--listen", address, *scenarios) as agent:
        yield agent


def check_after_restart(url: str, started_at: float) -> dict[str, Any]:
    def complete() -> dict[str, Any] | None:
        found = findings(url)
        lost, off = found.get("gpu_lost"), found.get("persistence_off")
        is_complete = lost and lost["owner"]["name"] and off and off["since"] is not None
        return found if is_complete else None

    found = eventually(complete)
    lost = found["gpu_lost"]
    assert (lost["gpus"], lost["args"]) == (["3"], {"xid": 79})
    assert lost["owner"]["kind"] in ("job", "user")
    assert "power-cycle" in lost["next"]
    assert started_at - 60 < lost["since"] < time.time()
    assert vector(url, lost["evidence"]), "the evidence shows the finding"
    return found


def until_lost(url: str) -> None:
    # A process of the job was stored before the loss.
    eventually(lambda: vector(url, "last_over_time(gpuscope_process_memory_bytes[1m])"))
    eventually(lambda: vector(url, "gpuscope_gpu_up == 0"))


@pytest.mark.slow
def test_over_its_own_store(tmp_path: Path) -> None:
    started_at, address = time.time(), f"127.0.0.1:{free_port()}"
    flags = ("--targets", address, "--scrape-interval", "1s")
    with ExitStack() as stack:
        with server(tmp_path / "data", *flags) as (url, _):
            stack.enter_context(scraped_agent(address))
            until_lost(url)
        with server(tmp_path / "data", *flags) as (url, _):
            found = check_after_restart(url, started_at)
    # The history is younger than the setting, so that is as far as it is known.
    assert started_at - 60 < found["persistence_off"]["since"] <= time.time()


def samples_of(instance: str, text: str, start: float, end: float) -> Iterator[Series]:
    """What a scrape every 15 seconds would have stored of an agent that says the same all the time."""
    times = np.arange(int(start * 1000), int(end * 1000), 15_000)
    for pairs, _, value in parse_once(text):
        labels = sorted({**dict(pairs), "instance": instance, "job": "gpus"}.items())
        yield Series(tuple(labels), times, np.full(len(times), value))


@pytest.mark.engine("prometheus")
def test_over_a_real_prometheus(tmp_path: Path) -> None:
    """Its history says that the GPU was lost five minutes ago; the agent still says so."""
    engine("prometheus")
    address = f"127.0.0.1:{free_port()}"
    scrape = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: gpus, static_configs: [{{targets: ["{address}"]}}]}}
"""
    with scraped_agent(address) as agent:
        agent.until(lambda series: any(name.startswith("gpuscope_process_memory_bytes") for name in series))
        before = agent.text()
        agent.until(lambda series: of_gpu(series, "gpuscope_gpu_up", 3) == 0)
        lost_at = time.time() - 300
        with running_prometheus(data=tmp_path / "prometheus") as behind:
            fill(behind, [*samples_of(address, before, lost_at - 300, lost_at)])
            fill(behind, [*samples_of(address, agent.text(), lost_at, time.time())])
        with (
            running_prometheus(scrape, data=tmp_path / "prometheus") as behind,
            server(tmp_path / "unused", "--store", behind) as (url, _),
        ):
            eventually(lambda: vector(behind, "gpuscope_gpu_up == 0"))
            found = check_after_restart(url, lost_at)
    assert abs(found["gpu_lost"]["since"] - lost_at) <= 60
    assert abs(found["persistence_off"]["since"] - (lost_at - 300)) <= 60
