"""Prometheus' public compliance suite for alert generators, where the Go module proxy has it.

It feeds a server by remote write, reads `/rules`, `/alerts` and `ALERTS`, and acts as its Alertmanager, for 40
minutes. ALERT_GENERATOR_SUITE names a folder with its source (`alert_generator/` of prometheus/compliance)
where the proxy does not have it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.engines import running
from tests.ports import free_port
from tests.waiting import wait_for

MODULE = "github.com/prometheus/compliance/alert_generator"
PROGRAM = "./cmd/alert_generator_compliance_tester"
BUILD_SECONDS = 1200


def go(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = shutil.which("go")
    if program is None:
        pytest.skip("alert-generator compliance suite: no Go toolchain")
    command = [program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=BUILD_SECONDS)


def suite_source(folder: Path) -> Path:
    if given := os.environ.get("ALERT_GENERATOR_SUITE"):
        return Path(given)
    (folder / "go.mod").write_text("module none\n")
    answer = go("mod", "download", "-json", f"{MODULE}@latest", cwd=folder)
    found = json.loads(answer.stdout or "{}")
    if "Dir" not in found:
        reason = str(found.get("Error", answer.stderr)).strip().replace("\n", " ")
        pytest.skip(f"alert-generator compliance suite: the Go module proxy does not have it: {reason}")
    return Path(found["Dir"])


@pytest.mark.slow
def test_the_alert_generator_compliance_suite(tmp_path: Path) -> None:
    source = suite_source(tmp_path)
    tester = tmp_path / "tester"
    built = go("build", "-o", tester, PROGRAM, cwd=source)
    if built.returncode != 0:
        pytest.skip(f"alert-generator compliance suite: it does not build: {built.stderr[-500:]}")
    alertmanager, address = free_port(), f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    rules = source / "rules.yaml"
    config = {
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
    }
    settings = {
        "remote_write_url": f"{url}/api/v1/write",
        "query_base_url": url,
        "rules_and_alerts_api_base_url": url,
        "alert_reception_server_port": alertmanager,
        "alert_message_parser": "default",
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    (tmp_path / "suite.yml").write_text(json.dumps({"settings": settings}))
    command: list[str | Path] = [
        sys.executable, "-m", "gpuscope", "server", "--config", tmp_path / "prometheus.yml",
        "--data", tmp_path / "data", "--listen", address,
    ]  # fmt: skip
    with running(command, f"{url}/-/ready"):
        wait_for(lambda: has_evaluated(url, rules), "an evaluation of all groups of the suite")
        result = subprocess.run(
            [tester, f"-config-file={tmp_path / 'suite.yml'}"], capture_output=True, text=True
        )
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    assert "Congrats! All tests passed" in result.stdout + result.stderr


def has_evaluated(url: str, rules: Path) -> bool:
    """Shipped groups do not count: those of the roll-ups have intervals of hours."""
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=30) as answer:
        groups = json.load(answer)["data"]["groups"]
    times = [group["lastEvaluation"] for group in groups if group["file"] == str(rules)]
    return bool(times) and not any(time.startswith("0001") for time in times)
