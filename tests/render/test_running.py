"""Real Prometheus, node_exporter and Alertmanager with the rendered files and a demo agent: all targets up."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import main
from tests.cli.test_commands import running as running_command
from tests.engines import engine, running, running_alertmanager, running_node_exporter
from tests.ports import free_port
from tests.waiting import wait_for

PATIENCE_SECONDS = 60


def ask(base: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.loads(answer.read())["data"]


def health_of_targets(base: str) -> dict[tuple[str, str], str]:
    targets = ask(base, "targets")["activeTargets"]
    return {(t["labels"]["job"], t["labels"]["instance"]): t["health"] for t in targets}


def port_of(url: str) -> str:
    return url.rsplit(":", 1)[1].split("/")[0]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    program, port = engine("prometheus"), free_port()
    with ExitStack() as stack:
        node_exporter = stack.enter_context(running_node_exporter())
        alertmanager = stack.enter_context(running_alertmanager())
        agent_options = ("--source", "demo", "--listen", "127.0.0.1:0", "--families", "native,dcgm")
        _, agent = stack.enter_context(
            running_command("agent", *agent_options, until=r"agent on (http://\S+)/metrics")
        )
        # The stand-in for Slurm's exporter is not needed: any exporter shows that its job is scraped.
        argv = [
            "--nodes",
            "localhost",
            "--slurm",
            "127.0.0.1",
            "--interval",
            "1s",
            "--alertmanager",
            "127.0.0.1",
        ]
        argv += ["--agent-port", port_of(agent[1]), "--node-exporter-port", port_of(node_exporter)]
        argv += ["--slurm-exporter-port", port_of(node_exporter), "--alertmanager-port", port_of(alertmanager)]
        argv += ["--external-label", "cluster=lab", "--query-log", str(tmp_path / "query.log")]
        assert main(["render", "prometheus", *argv, "--out", str(tmp_path / "etc")]) == 0
        command: list[str | Path] = [
            program,
            f"--config.file={tmp_path}/etc/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        base = f"http://127.0.0.1:{port}"
        stack.enter_context(running(command, f"{base}/-/ready"))
        yield base


def test_every_target_is_up_and_the_rest_of_the_file_works(prometheus: str, tmp_path: Path) -> None:
    expected = {
        ("node", "localhost"): "up",
        ("node", "127.0.0.1"): "up",
        ("gpuscope", "localhost"): "up",
        ("slurm", "127.0.0.1"): "up",
    }
    wait_for(
        lambda: health_of_targets(prometheus) == expected, "every target", lambda: health_of_targets(prometheus)
    )
    joined = (
        'count(gpuscope_gpu_info * on (instance) group_left () (count by (instance) (node_load1{job="node"})))'
    )

    def joined_count() -> str:
        found = ask(prometheus, "query", query=joined)["result"]
        return str(found[0]["value"][1]) if found else ""

    # A target is up with its first scrape, which may come before the first reading of GPUs.
    wait_for(lambda: joined_count() == "8", "the join of GPUs and nodes", joined_count)
    assert len(ask(prometheus, "alertmanagers")["activeAlertmanagers"]) == 1
    assert {group["name"] for group in ask(prometheus, "rules")["groups"]} >= {"gpu-sessions"}
    assert "cluster: lab" in ask(prometheus, "status/config")["yaml"]
    assert "node_load1" in (tmp_path / "query.log").read_text()
