"""Rules in a running `gpuscope server`: reload of good and broken files, restart, and another engine's data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.settings import load_settings
from gpuscope.base.time_text import parse_rfc3339
from gpuscope.cli import main
from gpuscope.cli.wiring.rule_evaluation import load_engine_rules
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.judge.rules.rule_spec import SECOND_NS
from tests.engines import running, running_alertmanager, running_prometheus
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
    address = flags[flags.index("--listen") + 1] if "--listen" in flags else f"127.0.0.1:{free_port()}"
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


def reload_by_http(url: str, method: str) -> tuple[int, str]:
    request = urllib.request.Request(f"{url}/-/reload", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def alert_names(url: str) -> list[str]:
    return [one["labels"]["alertname"] for one in get(url, "api/v1/alerts")["alerts"]]


def test_a_broken_file_is_refused_whole_and_the_old_rules_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
            mistake = f'{rules}: 7:27: group "g", rule 2, "Broken"'
            with urllib.request.urlopen(f"{url}/api/reload", timeout=30) as answer:
                assert mistake in json.load(answer)["rules"]["error"]
            assert main(["doctor", "--server", url]) == 1
            assert mistake in capsys.readouterr().out
            assert alert_names(url) == ["First"]
            status, text = reload_by_http(url, "PUT")
            assert (status, mistake in text) == (500, True)
            assert text.startswith("failed to reload config: ")
            rules.write_text(RULES.format(name="Second"))
            assert reload_by_http(url, "GET")[0] == 405
            assert reload_by_http(url, "POST") == (200, "")
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


ENGINE_RULES = """
groups:
- name: g
  interval: 1s
  rules:
  - alert: Late
    expr: vector(time()) > 0
    annotations: {seen: '{{ $value | printf "%.3f" }}'}
"""


def test_over_another_engine_alerts_reach_the_alertmanagers_of_prometheus_yml(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(ENGINE_RULES)
    config = tmp_path / "prometheus.yml"
    with running_prometheus() as engine, running_alertmanager() as alertmanager:
        address = alertmanager.removeprefix("http://")
        relabel = [{"action": "labeldrop", "regex": "replica"}]
        document = {
            "global": {"external_labels": {"cluster": "lab", "replica": "a"}},
            "rule_files": ["rules.yml"],
            "alerting": {
                "alert_relabel_configs": relabel,
                "alertmanagers": [{"static_configs": [{"targets": [address]}]}],
            },
            "scrape_configs": [{"job_name": "theirs", "static_configs": [{"targets": ["127.0.0.1:1"]}]}],
        }
        config.write_text(json.dumps(document))
        with server("--store", engine, "--config", str(config), "--data", str(tmp_path / "data")) as (url, _):

            def received() -> list[dict[str, Any]]:
                with urllib.request.urlopen(f"{alertmanager}/api/v2/alerts", timeout=30) as answer:
                    found: list[dict[str, Any]] = json.load(answer)
                    return found

            wait_for(received, "an alert in the Alertmanager")
            [alert] = received()
            assert get(url, "api/v1/alertmanagers")["activeAlertmanagers"][0]["url"] == (
                f"{alertmanager}/api/v2/alerts"
            )
        assert get(engine, "api/v1/series?match[]=ALERTS") == []
    assert alert["labels"] == {"alertname": "Late", "cluster": "lab"}
    # The query runs 30 s before the slot, which is when the alert began to fire.
    late = parse_rfc3339(alert["startsAt"]) - float(alert["annotations"]["seen"])
    assert late == pytest.approx(30.0, abs=0.002)


def test_a_query_offset_of_the_configuration_counts_over_another_engine(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(ENGINE_RULES)
    settings = load_settings({"store": "http://127.0.0.1:1", "rules": str(rules)}, {})
    assert load_engine_rules(settings, ScrapeConfig()).default_query_offset_ns == 30 * SECOND_NS
    config = ScrapeConfig(rule_query_offset=2.5)
    assert load_engine_rules(settings, config).default_query_offset_ns == 2_500_000_000


def own_series(url: str) -> list[dict[str, str]]:
    """Labels of the stored own metric."""
    found = get(url, "api/v1/query?query=prometheus_rule_group_rules")["result"]
    return [one["metric"] for one in found]


@pytest.mark.parametrize("scrapes_itself", [False, True])
def test_alerts_about_this_server_have_its_metrics(scrapes_itself: bool, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES.format(name="First"))
    address = f"127.0.0.1:{free_port()}"
    itself = [{"job_name": "me", "scrape_interval": "1s", "static_configs": [{"targets": [address]}]}]
    config = {"rule_files": ["rules.yml"], "scrape_configs": itself if scrapes_itself else []}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    flags = ["--config", str(tmp_path / "prometheus.yml"), "--data", str(tmp_path / "data")]
    with server("--listen", address, *flags) as (url, _):
        wait_for(lambda: own_series(url), "own metrics in the store")
        jobs = {one["job"] for one in own_series(url)}
        pools = {one["scrapePool"] for one in get(url, "api/v1/targets")["activeTargets"]}
        assert jobs == {"me" if scrapes_itself else "gpuscope-server"}
        assert pools == ({"me"} if scrapes_itself else set())  # its own metrics are stored, not scraped
