"""Every query of every dashboard on a real Prometheus, started from the rendered files, that scrapes the demo.

Prometheus scrapes an agent with simulated GPUs and Slurm, a real node_exporter, and a simulated fleet with pods
and MIG through `/federate`; Alertmanager is real, too. A query returns data or has a reason
here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuscope.cli import main
from gpuscope.serve.render.grafana import GrafanaPlan, dashboard_files
from tests.cli.test_commands import running as running_command
from tests.engines import engine, running, running_alertmanager, running_node_exporter
from tests.fast_yaml import read_yaml
from tests.ports import free_port
from tests.render.dashboard_queries import ask, count, fill, port_of, queries_of, running_agent
from tests.waiting import wait_for

NODE = "localhost"
FAMILIES = "native,dcgm,nvidia_smi,sessions"
REASONS = {
    "gpuscope_allocation_used": "needs a kubelet, which the demo does not have",
    "gpuscope_owner_allocated": "needs a kubelet, which the demo does not have",
    "gpuscope_gpu_fan_speed_ratio": "the simulated data-centre GPUs have no fans, as the real ones",
    "gpuscope_gpu_recovery_action": "the driver recommends no recovery for a simulated GPU",
    'alertname=~"Slurm.*"': "the simulated Slurm cluster has no firing alert",
}
"""By part of a query: why it is empty here."""
REASONS_OF_A_MINUTE = {
    'error="uncorrected",lifetime="volatile"}[$__range]': "the second error of ecc-storm comes after a minute",
}
"""The same in the first minute; a slow machine takes longer to start everything."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, program, port = tmp_path_factory.mktemp("grafana"), engine("prometheus"), free_port()
    with ExitStack() as stack:
        node_exporter = stack.enter_context(running_node_exporter())
        alertmanager = stack.enter_context(running_alertmanager())
        demo = (
            "--source",
            "demo",
            "--idle-after",
            "1s",
            "--scenario",
            "xid79@+2s,thermal,held-idle,ecc-storm",
            "--families",
            FAMILIES,
        )
        agent = stack.enter_context(running_agent(*demo))
        fleet_options = (
            "--demo",
            "--demo-nodes",
            "2",
            "--data",
            str(folder / "fleet"),
            "--listen",
            "127.0.0.1:0",
        )
        _, fleet = stack.enter_context(
            running_command("up", *fleet_options, until=r"gpuscope is at (http://\S+)")
        )
        argv = ["--nodes", NODE, "--interval", "1s", "--alertmanager", "127.0.0.1"]
        argv += ["--agent-port", port_of(agent), "--node-exporter-port", port_of(node_exporter)]
        argv += ["--alertmanager-port", port_of(alertmanager), "--out", str(folder / "etc")]
        assert main(["render", "prometheus", *argv]) == 0
        add_federation(folder / "etc/prometheus.yml", fleet[1])
        command: list[str | Path] = [
            program,
            f"--config.file={folder}/etc/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        base = f"http://127.0.0.1:{port}"
        stack.enter_context(running(command, f"{base}/-/ready"))
        wait_for(lambda: count(base, "rate(gpuscope_agent_cpu_seconds_total[15s])"), "two scrapes of the agent")
        wait_for(lambda: count(base, 'gpuscope_owner_sm_ratio{kind="pod"}'), "the federated fleet")
        wait_for(lambda: count(base, "gpuscope_slurm_jobs"), "Slurm's numbers")
        wait_for(lambda: count(base, 'ALERTS{alertstate="firing",alertname!="Watchdog"}'), "an alert")
        wait_for(
            lambda: count(base, "rate(gpuscope_owner_gpu_seconds_total{kind='pod'}[15s])"), "pods' counters"
        )
        yield base


def add_federation(path: Path, fleet: str) -> None:
    document = read_yaml(path.read_text())
    document["scrape_configs"].append(
        {
            "job_name": "fleet",
            "honor_labels": True,
            "metrics_path": "/federate",
            "params": {"match[]": ['{__name__=~"gpuscope_.*"}']},
            "static_configs": [{"targets": [fleet.removeprefix("http://")]}],
        }
    )
    path.write_text(yaml.safe_dump(document))


def dashboards() -> list[Any]:
    return [json.loads(file.content) for file in dashboard_files(GrafanaPlan())]


def choices(base: str) -> list[dict[str, str]]:
    """What users may choose in the variables: each GPU and node that has something to show."""

    def metrics(expr: str) -> list[dict[str, str]]:
        return [row["metric"] for row in ask(base, "query", query=expr)["result"]]

    gpus = [
        *metrics(f'topk(1, gpuscope_gpu_utilization_ratio{{instance="{NODE}"}})'),
        *metrics("topk(1, gpuscope_gpu_xid_errors_total)"),
        *metrics('topk(1, gpuscope_gpu_ecc_errors_total{error="uncorrected",lifetime="volatile"})'),
        *metrics("topk(1, gpuscope_mig_info)"),
    ]
    everywhere = {"partition": ".*", "namespace": ".*"}
    return [
        {"instance": instance, "uuid": gpu["uuid"], "kind": kind, **everywhere}
        for gpu, kind in zip(gpus, ("user", "pod", "job", "user"), strict=True)
        for instance in (".*", gpu["instance"])
    ]


def reason_of(expr: str) -> str:
    return next((why for part, why in (REASONS | REASONS_OF_A_MINUTE).items() if part in expr), "")


def test_every_query_returns_data_or_has_a_reason(prometheus: str) -> None:
    chosen = choices(prometheus)
    empty, reasons_used = [], set()
    for document in dashboards():
        # A node's dashboard has one node chosen, never all.
        own = [one for one in chosen if document["uid"] != "gpuscope-node" or one["instance"] != ".*"]
        for title, expr in queries_of(document):
            if any(count(prometheus, fill(expr, values)) for values in own):
                continue
            if reason := reason_of(expr):
                reasons_used.add(reason)
            else:
                empty.append(f"{document['title']}: {title}: {fill(expr, own[0])}")
    assert not empty, "\n".join(empty)
    needed = reasons_used - set(REASONS_OF_A_MINUTE.values())
    assert needed == set(REASONS.values()), "a reason that is not needed any more"
