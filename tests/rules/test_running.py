"""Rules in a running `gpuscope server`: reload of good and broken files, restart, and another engine's data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuscope.cli import main
from tests.engines import running, running_prometheus
from tests.ports import free_port
from tests.rules.alertmanager_sink import alertmanager_sink
from tests.waiting import wait_for

RULES = """
groups:
- name: g
  interval: 200ms
  rules:
  - {{alert: {name}, expr: vector(1) > 0, labels: {{severity: page}}}}
"""


@contextmanager
def server(*flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpuscope", "server", "--listen", address, *flags]
    with running(command, f"http://{address}/-/ready") as process:
        yield f"http://{address}", process


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/{path}", timeout=30) as answer:
        return json.load(answer)["data"]


def metric(url: str, name: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return [line.rpartition(" ")[2] for line in lines if line.startswith(name)]


def alert_names(url: str) -> list[str]:
    return [one["labels"]["alertname"] for one in get(url, "api/v1/alerts")["alerts"]]


def test_a_broken_file_is_refused_whole_and_the_old_rules_go_on(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.format(name="First"))
    with alertmanager_sink() as sink:
        config = tmp_path / "prometheus.yml"
        managers = {"alertmanagers": [{"static_configs": [{"targets": [sink.url]}]}]}
        config.write_text(json.dumps({"rule_files": ["rules.yml"], "alerting": managers}))
        with server("--config", str(config), "--data", str(tmp_path / "data")) as (url, process):
            wait_for(lambda: alert_names(url) == ["First"])
            wait_for(lambda: [one["labels"]["alertname"] for one in sink.alerts()] == ["First"])
            rules.write_text(RULES.format(name="Second") + "  - {alert: Broken, expr: 'sum('}\n")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: metric(url, "prometheus_config_last_reload_successful") == ["0"])
            assert get(url, "api/v1/status/runtimeinfo")["reloadConfigSuccess"] is False
            assert alert_names(url) == ["First"]
            rules.write_text(RULES.format(name="Second"))
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: alert_names(url) == ["Second"])
            assert metric(url, "prometheus_config_last_reload_successful") == ["1"]
        state = json.loads((tmp_path / "data/rule_state.json").read_text())
        assert [rule["name"] for group in state["groups"] for rule in group["rules"]] == ["Second"]


def test_a_broken_file_at_the_start_is_exit_2(tmp_path: Path, capsys: Any) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: a}]}]")
    assert main(["server", "--rules", str(rules), "--data", str(tmp_path / "data")]) == 2
    assert f"{rules}: 1:" in capsys.readouterr().err
    assert main(["server", "--rules", str(tmp_path / "none.yml"), "--data", str(tmp_path / "data")]) == 2


def test_over_another_engine_alerting_rules_run_and_recording_rules_are_refused(
    tmp_path: Path, capsys: Any
) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.format(name="There"))
    with running_prometheus() as engine:
        flags = ("--store", engine, "--rules", str(rules), "--data", str(tmp_path / "data"))
        with server(*flags) as (url, _):
            wait_for(lambda: alert_names(url) == ["There"])
            assert get(url, "api/v1/rules")["groups"][0]["rules"][0]["health"] == "ok"
        rules.write_text("groups: [{name: g, rules: [{record: a, expr: up}]}]")
        assert main(["server", *flags]) == 2
    assert "gpuscope render rules" in capsys.readouterr().err
