"""A server that starts after a GPU was lost: its findings come from the history, its own or a Prometheus'."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_server import eventually, server, vector
from tests.engines import engine, free_port, running_prometheus
from tests.integration.agent_process import Agent, running_agent

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


def check_after_restart(url: str, started_at: float) -> None:
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
    # The history is younger than the setting, so that is as far as it is known.
    assert started_at - 60 < found["persistence_off"]["since"] <= time.time()
    assert vector(url, lost["evidence"]), "the evidence shows the finding"


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
            check_after_restart(url, started_at)


@pytest.mark.engine("prometheus")
def test_over_a_real_prometheus(tmp_path: Path) -> None:
    engine("prometheus")
    started_at, address = time.time(), f"127.0.0.1:{free_port()}"
    scrape = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: gpus, static_configs: [{{targets: ["{address}"]}}]}}
"""
    with running_prometheus(scrape) as behind, scraped_agent(address):
        until_lost(behind)
        with server(tmp_path / "unused", "--store", behind) as (url, _):
            check_after_restart(url, started_at)
