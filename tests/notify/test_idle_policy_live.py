"""The idle policy in a running `gpuscope server`: samples in; messages and an audit log out.

Commands need a login and a quarter of an hour: `tests/wiring/test_scheduled_threads.py` runs them.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.model.series import Series
from tests.engines import running
from tests.notify.timeline import Sink, call, running_sink
from tests.ports import free_port
from tests.promql.prometheus import fill
from tests.waiting import wait_for

ALERTING = """
route: {receiver: hook, group_by: [...], group_wait: 0s, group_interval: 5m}
receivers: [{name: hook, webhook_configs: [{url: 'SINK/hook'}]}]
"""
POLICY = """
command: [touch, 'FOLDER/ran-{job}-{user}']
pod_command: [touch, 'FOLDER/ran-{namespace}-{pod}']
dry_run: DRY_RUN
exceptions: {users: [root], partitions: [debug], namespaces: [prod], labels: [keep-gpu=true]}
"""
JOBS = {
    "17": (61, "ann", "gpu"),
    "18": (106, "bob", "gpu"),
    "19": (121, "eve", "gpu"),
    "20": (130, "root", "gpu"),
    "21": (130, "kim", "debug"),
    "22": (5, "lee", "gpu"),
}
PODS = {("ml", "train-0"): (121, ""), ("prod", "chat-0"): (130, ""), ("ml", "kept-0"): (130, "true")}


def sample(metric: str, value: float, **labels: str) -> Series:
    pairs = {"__name__": metric, "instance": "n1:9400", "job": "gpuscope", **labels}
    at_ms = int(time.time() * 1000)
    return Series(tuple(sorted(pairs.items())), np.array([at_ms], np.int64), np.array([value], float))


def holders() -> Iterator[Series]:
    for gpu, (job, (minutes, user, partition)) in enumerate(JOBS.items()):
        owner = {"kind": "job", "name": job}
        yield sample("gpuscope_owner_idle_seconds", 60 * minutes, gpu=str(gpu), uuid=f"GPU-{gpu}", **owner)
        yield sample("gpuscope_owner_processes", 1, gpu=str(gpu), uuid=f"GPU-{gpu}", **owner)
        process = {"pid": str(100 + gpu), "slurm_job": job}
        yield sample("gpuscope_process_idle_seconds", 60 * minutes, gpu=str(gpu), uuid=f"GPU-{gpu}", **process)
        yield sample("gpuscope_job_info", 1, slurm_job=job, user=user, account="nlp", partition=partition)
    for gpu, ((namespace, pod), (minutes, keep)) in enumerate(PODS.items(), len(JOBS)):
        owner = {"kind": "pod", "name": pod, "namespace": namespace}
        yield sample("gpuscope_owner_idle_seconds", 60 * minutes, gpu=str(gpu), uuid=f"GPU-{gpu}", **owner)
        yield sample("gpuscope_owner_processes", 1, gpu=str(gpu), uuid=f"GPU-{gpu}", **owner)
        process = {"pid": str(100 + gpu), "namespace": namespace, "pod": pod}
        yield sample("gpuscope_process_idle_seconds", 60 * minutes, gpu=str(gpu), uuid=f"GPU-{gpu}", **process)
        if keep:
            yield sample("gpuscope_pod_labels", 1, namespace=namespace, pod=pod, label_keep_gpu=keep)


def audited(folder: Path) -> list[dict[str, Any]]:
    path = folder / "data/idle_policy_audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def held_idle(folder: Path) -> list[dict[str, Any]]:
    """The rows of the GPU that the demo's scenario holds idle; other GPUs have idle hours too."""
    return [row for row in audited(folder) if row["gpus"] == ["gpu-a01/1"]]


def actions(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in audited(folder):
        found.setdefault(row["name"], []).append(row.get("result") or row["action"])
    return found


def warned(sink: Sink) -> set[tuple[str, str]]:
    bodies = [json.loads(body) for _, _, body in list(sink.requests)]
    labels = [alert["labels"] for body in bodies for alert in body["alerts"]]
    return {(one.get("slurm_job") or one["pod"], one["warning"]) for one in labels}


def write_policy(folder: Path, *, dry_run: str) -> None:
    (folder / "idle.yml").write_text(POLICY.replace("FOLDER", str(folder)).replace("DRY_RUN", dry_run))


def reload_works(url: str) -> bool:
    return re.search(rb"^prometheus_config_last_reload_successful 1$", metrics(url), re.M) is not None


def metrics(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return bytes(answer.read())


def test_a_dry_run_in_a_demo(tmp_path: Path) -> None:
    """As docs/reports.md has it: no agent, no Slurm, no channel."""
    address, folder = f"127.0.0.1:{free_port()}", tmp_path / "data"
    (tmp_path / "idle.yml").write_text("command: [scancel, '{job}']\n")
    command: list[str | Path] = [
        sys.executable, "-m", "gpuscope", "up", "--demo", "--scenario", "held-idle", "--demo-nodes", "1",
        "--demo-gpus", "2", "--data", folder, "--idle-policy", tmp_path / "idle.yml", "--listen", address,
    ]  # fmt: skip
    with running(command, f"http://{address}/-/ready") as server:
        is_idle = "query?query=gpuscope_owner_idle_seconds%20%3E%207200"
        wait_for(lambda: call("GET", f"http://{address}/api/v1/{is_idle}")["data"]["result"], "the history")
        server.send_signal(signal.SIGHUP)  # runs the policy at once
        wait_for(lambda: len(held_idle(tmp_path)) >= 2, "the dry run", lambda: audited(tmp_path))
        alerts = call("GET", f"http://{address}/api/v2/alerts")
    rows = held_idle(tmp_path)
    done = [(row["action"], row.get("warning")) for row in rows]
    assert done == [("warned", 2), ("withheld", None)], rows
    last = rows[-1]
    assert last["command"] == ["scancel", last["name"]]
    assert last["reason"].startswith("this server has no login")
    assert last["idle_minutes"] >= 120
    warnings = [one["labels"] for one in alerts if one["labels"].get("slurm_job") == last["name"]]
    assert {(one["slurm_job"], one["warning"]) for one in warnings if one["alertname"] == "IdleGpu"} == {
        (last["name"], "2"),
    }


def test_warnings_exceptions_dry_run_and_reload(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    write_policy(tmp_path, dry_run="true")
    with running_sink() as sink:
        (tmp_path / "alertmanager.yml").write_text(ALERTING.replace("SINK", sink.url))
        command: list[str | Path] = [
            sys.executable, "-m", "gpuscope", "server", "--alerting", tmp_path / "alertmanager.yml",
            "--idle-policy", tmp_path / "idle.yml", "--data", tmp_path / "data", "--listen", address,
        ]  # fmt: skip
        with running(command, f"{url}/-/ready") as server:
            fill(url, list(holders()))
            server.send_signal(signal.SIGHUP)  # reads the file again and runs the policy at once
            messages = {("17", "1"), ("18", "2"), ("19", "2"), ("train-0", "2")}
            wait_for(
                lambda: warned(sink) >= messages, "the warnings", lambda: (warned(sink), actions(tmp_path))
            )
            assert warned(sink) == messages, "nobody else is warned"
            assert actions(tmp_path) == {
                "17": ["warned"],
                "18": ["warned"],
                "19": ["warned", "withheld"],
                "20": ["excepted"],
                "21": ["excepted"],
                "train-0": ["warned", "withheld"],
                "chat-0": ["excepted"],
                "kept-0": ["excepted"],
            }
            reasons = [row["reason"] for row in audited(tmp_path) if row["action"] == "excepted"]
            assert reasons == ["user root", "partition debug", "namespace prod", "label keep_gpu=true"]
            withheld = {row["reason"] for row in audited(tmp_path) if row["action"] == "withheld"}
            assert {reason.partition(":")[0] for reason in withheld} == {"this server has no login"}

            (tmp_path / "idle.yml").write_text("act_after: soon\n")
            server.send_signal(signal.SIGHUP)
            wait_for(lambda: not reload_works(url), "the broken file to be refused")
            refused = call("GET", f"{url}/api/reload")["idle_policy"]["error"]
            assert refused.startswith(f"{tmp_path}/idle.yml: line 1, column 1: act_after: 'soon' is not a dur")

            write_policy(tmp_path, dry_run="false")
            fill(url, list(holders()))
            server.send_signal(signal.SIGHUP)
            wait_for(lambda: reload_works(url), "the file to be read again")
            assert call("GET", f"{url}/api/reload")["idle_policy"]["error"] == ""
        assert not list(tmp_path.glob("ran-*")), "everybody on this machine can send such samples"
