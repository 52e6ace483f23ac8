"""A node that dies, one that never answered, one that leaves the configuration: real agents, a real server."""

from __future__ import annotations

import json
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_server import eventually, server
from tests.engines import engine, running_prometheus, running_victoria_metrics
from tests.integration.agent_process import Agent, running_agent
from tests.ports import free_port

Node = dict[str, Any]


def agent(stack: ExitStack, name: str, *flags: str) -> Agent:
    demo = ("--source", "demo", "--demo-gpus", "2", "--seed", "7" if name == "a" else "8")
    return stack.enter_context(running_agent(*demo, "--node", name, *flags))


def address(agent: Agent) -> str:
    return urllib.parse.urlsplit(agent.base).netloc


def live(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/api/live", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def nodes(url: str) -> dict[str, Node]:
    return {node["name"]: node for node in live(url)["nodes"]}


def until(url: str, check: Callable[[dict[str, Node]], Any]) -> dict[str, Node]:
    """The nodes, once they are as they should be."""
    found: dict[str, Node] = eventually(lambda: (now := nodes(url)) and check(now) and now)
    return found


def until_findings(url: str, *kinds: str) -> dict[str, Any]:
    found: dict[str, Any] = eventually(
        lambda: (now := {one["kind"]: one for one in live(url)["findings"]}).keys() >= {*kinds} and now
    )
    return found


def is_gone(name: str) -> Callable[[dict[str, Node]], bool]:
    return lambda now: name in now and "gone" in now[name]


def test_a_dead_node_stays_as_gone_also_after_a_restart(tmp_path: Path) -> None:
    """It used to vanish within ten seconds, with its GPUs and without a word."""
    never = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        first, second = agent(stack, "a"), agent(stack, "b")
        targets = f"{address(first)},{address(second)},{never}"
        flags = ("--targets", targets, "--scrape-interval", "1s")
        with server(tmp_path / "data", *flags) as (url, _):
            until(url, lambda now: {"a", "b"} <= now.keys())
            second.stop()
            stopped_at = time.time()
            found = until(url, lambda now: is_gone("b")(now) and is_gone(never)(now))
            assert found.keys() == {"a", "b", never}
            assert "gone" not in found["a"]
            gone = found["b"]["gone"]
            assert gone["answered"] is True
            assert stopped_at - 30 < gone["since"] <= stopped_at + 1
            assert "refused" in gone["why"] or "connect" in gone["why"].lower()
            picture = live(url)
            states = {(gpu["node"], gpu["gpu"]): gpu for gpu in picture["gpus"]}
            assert {key: gpu["state"] == "gone" for key, gpu in states.items()} == {
                ("a", "0"): False, ("a", "1"): False, ("b", "0"): True, ("b", "1"): True,
            }  # fmt: skip
            assert states["b", "0"]["model"]
            assert "busy" not in states["b", "0"], "an old number is not shown as one of now"
            assert found[never]["gone"]["answered"] is False
            told = {one["instance"]: one for one in picture["targets"]}
            assert told.keys() == {address(second), never}
            assert told[never]["why"]
            assert told[never]["job"] == "gpuscope"
            down = until_findings(url, "node_down")["node_down"]
            assert down["node"] == "b"
            assert down["since"] is None or abs(down["since"] - stopped_at) < 30
        with server(tmp_path / "data", *flags) as (url, _):
            again = until(url, lambda now: is_gone("b")(now) and is_gone(never)(now) and "a" in now)
            assert again["b"]["gone"]["answered"] is True
            assert abs(again["b"]["gone"]["since"] - gone["since"]) < 60, "since when is in the history"
            assert again[never]["gone"]["since"] <= found[never]["gone"]["since"] + 60
            assert sum(gpu["node"] == "b" for gpu in live(url)["gpus"]) == 2
            # The first server says so too, but within a minute; one that starts evaluates every check at once.
            findings = until_findings(url, "node_down", "target_down")
            assert findings["node_down"]["node"] == "b"
            assert findings["target_down"]["node"] == never


def test_a_target_that_leaves_the_configuration_is_not_missed(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"

    def write(*targets: str) -> None:
        static = f"static_configs: [{{targets: {[*targets]}}}]"
        config.write_text(f"scrape_configs: [{{job_name: gpus, scrape_interval: 1s, {static}}}]")

    with ExitStack() as stack:
        first, second = agent(stack, "a"), agent(stack, "b")
        write(address(first), address(second))
        with server(tmp_path / "data", "--config", str(config)) as (url, process):
            until(url, lambda now: {"a", "b"} <= now.keys())
            second.stop()
            until(url, is_gone("b"))
            write(address(first))
            process.send_signal(signal.SIGHUP)
            until(url, lambda now: now.keys() == {"a"})
            assert live(url)["targets"] == []
        with server(tmp_path / "data", "--config", str(config)) as (url, _):
            until(url, lambda now: now.keys() == {"a"})


@pytest.mark.engine("prometheus")
@pytest.mark.engine("victoria-metrics")
@pytest.mark.parametrize("name", ["prometheus", pytest.param("victoria-metrics", marks=pytest.mark.slow)])
def test_over_another_engine(tmp_path: Path, name: str) -> None:
    engine(name)
    never = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        first, second = agent(stack, "a"), agent(stack, "b")
        hosts = [address(first), address(second), never]
        scrape = (
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: gpus, static_configs: [{{targets: {hosts}}}]}},\n"
            "  {job_name: other, static_configs: [{targets: ['127.0.0.1:1']}]}]\n"
        )
        if name == "prometheus":
            behind = stack.enter_context(running_prometheus(scrape))
        else:
            (tmp_path / "scrape.yml").write_text(scrape)
            scrape_flags = [f"-promscrape.config={tmp_path / 'scrape.yml'}", "-search.latencyOffset=0s"]
            behind = stack.enter_context(running_victoria_metrics(flags=scrape_flags))
        with server(tmp_path / "unused", "--store", behind) as (url, _):
            until(url, lambda now: {"a", "b"} <= now.keys())
            second.stop()
            found = until(url, lambda now: is_gone("b")(now) and is_gone(never)(now))
            assert found.keys() == {"a", "b", never}, "the other job is none of ours"
            assert found["b"]["gone"]["why"]
            assert found[never]["gone"]["answered"] is False
            assert sum(gpu["state"] == "gone" for gpu in live(url)["gpus"]) == 2
