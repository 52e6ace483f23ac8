"""The same rule file at the same path over the same samples, in a real Prometheus 3.14 and in our server.

Samples of a whole scenario are sent ahead of time to both by remote write, so that what an evaluation sees
depends on its timestamp alone; the timestamps are equal because the paths are. What Prometheus gives is kept as
a golden, which `test_scenario.py` compares with the engine on an injected clock.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import pytest

from gpuscope.base.time_text import parse_rfc3339
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.model.series import Labels
from tests.engines import engine, running
from tests.goldens import check_golden
from tests.ports import free_port
from tests.rules.alertmanager_sink import AlertmanagerSink, alertmanager_sink
from tests.rules.scenario import GOLDEN, NAMES, RULES, SECONDS, is_of_scenario, picture, samples

EXTERNAL_URL = "http://monitor.example:9090/prefix"
MEASURED = ("evaluationTime", "lastEvaluation", "lastError")


@dataclass(frozen=True)
class Evaluator:
    """A running server and the Alertmanager that it sends to."""

    url: str
    sink: AlertmanagerSink
    process: subprocess.Popen[bytes]

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def write(self, body: bytes) -> None:
        headers = {
            "content-encoding": "snappy",
            "content-type": "application/x-protobuf",
            "x-prometheus-remote-write-version": "0.1.0",
        }
        request = urllib.request.Request(f"{self.url}/api/v1/write", body, headers)
        urllib.request.urlopen(request, timeout=30).close()


def config_text(rules: Path, sink: AlertmanagerSink) -> str:
    return json.dumps(
        {
            "global": {"external_labels": {"cluster": "lab", "severity": "external"}},
            "rule_files": [str(rules)],
            "alerting": {
                "alert_relabel_configs": [
                    {"source_labels": ["alertname"], "regex": "Twice", "action": "drop"},
                    {"target_label": "added", "replacement": "<yes> & no"},
                ],
                "alertmanagers": [
                    {"path_prefix": "/am/", "static_configs": [{"targets": [sink.url, "dropped:1"]}],
                     "relabel_configs": [
                         {"source_labels": ["__address__"], "regex": "dropped.*", "action": "drop"}
                     ]}
                ],
            },
        }
    )  # fmt: skip


@contextmanager
def both_running(folder: Path, rules: str) -> Iterator[tuple[Evaluator, Evaluator]]:
    program = engine("prometheus-3.14")
    path = folder / "rules.yml"
    path.write_text(rules)
    with ExitStack() as stack:
        sinks = [stack.enter_context(alertmanager_sink()) for _ in range(2)]
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        configs = [folder / "theirs.json", folder / "ours.json"]
        for config, sink in zip(configs, sinks, strict=True):
            config.write_text(config_text(path, sink))
        theirs: list[str | Path] = [
            program, f"--config.file={configs[0]}", f"--storage.tsdb.path={folder}/theirs",
            f"--web.listen-address={addresses[0]}", "--web.enable-remote-write-receiver",
            f"--web.external-url={EXTERNAL_URL}", "--web.route-prefix=/", "--log.level=error",
        ]  # fmt: skip
        ours: list[str | Path] = [
            sys.executable, "-m", "gpuscope", "server", f"--config={configs[1]}", f"--data={folder}/ours",
            f"--listen={addresses[1]}", f"--external-url={EXTERNAL_URL}", "--log-level=error",
        ]  # fmt: skip
        first, second = (
            Evaluator(
                f"http://{address}", sink, stack.enter_context(running(command, f"http://{address}/-/ready"))
            )
            for command, address, sink in zip((theirs, ours), addresses, sinks, strict=True)
        )
        yield first, second


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def scenario_body(scenario: Iterable[tuple[Labels, int, float]]) -> bytes:
    encoded = [(encode_labels(labels), time_ms, value) for labels, time_ms, value in scenario]
    return bytes(cramjam.snappy.compress_raw(encode_samples(encoded)))


def series_over_time(server: Evaluator, start: int) -> dict[str, list[Any]]:
    """Every quarter of a second, so that a missing stale marker shows, and the raw samples."""
    end = start + SECONDS - 1
    found = server.get("query_range", query=NAMES, start=str(start + 1), end=str(end), step="0.25")
    raw = server.get("query", query=f"{NAMES}[{SECONDS - 2}s]", time=str(end))
    shown = {json.dumps(one["metric"], sort_keys=True): [one["values"]] for one in found["result"]}
    for one in raw["result"]:
        shown.setdefault(json.dumps(one["metric"], sort_keys=True), []).append(one["values"])
    return shown


def recorded(server: Evaluator, start: int) -> bytes:
    def query(expression: str, at: int) -> list[tuple[dict[str, str], float]]:
        found = server.get("query", query=expression, time=str(at))["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    return picture(query, server.sink.alerts(), start)


def skip_if_too_slow(*servers: Evaluator) -> None:
    for server in servers:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        missed = [line for line in lines if line.startswith("prometheus_rule_group_iterations_missed_total")]
        if any(not line.endswith(" 0") for line in missed):
            pytest.skip(f"this machine is too slow for an evaluation each second: {missed}")


def without_measurements(document: Any) -> Any:
    """Durations differ, and messages of failed queries have other words; that they failed must not."""
    if isinstance(document, dict):
        return {
            key: bool(value) if key in MEASURED else without_measurements(value)
            for key, value in document.items()
        }
    if isinstance(document, list):
        found = [without_measurements(one) for one in document]
        return sorted(found, key=lambda one: json.dumps(one, sort_keys=True))
    return document


def own_groups(server: Evaluator) -> list[Any]:
    """Without the roll-ups for reports, which a Prometheus does not have."""
    groups = server.get("rules")["groups"]
    return [group for group in groups if not group["file"].startswith("gpuscope/")]


def longest_pause(server: Evaluator, *others: float) -> tuple[float, float]:
    """Begin and end of the longest time in a second in which no group begins, as fractions of the second;
    `others` are those of groups that the server does not have yet."""
    times = (re.sub(r"(\.\d{6})\d*", r"\1", group["lastEvaluation"]) for group in own_groups(server))
    begun = sorted([*others, *(parse_rfc3339(one) % 1 for one in times)])
    pauses = [(after - before, before) for before, after in zip(begun, [*begun[1:], begun[0] + 1], strict=True)]
    length, began = max(pauses)
    return began, began + length


def quiet_fraction(server: Evaluator, *others: float) -> float:
    """When in a second no group is evaluated: late in the longest pause, because evaluations take time."""
    began, ends = longest_pause(server, *others)
    return began + 0.7 * (ends - began)


def own_metrics(server: Evaluator) -> set[tuple[str, ...]]:
    """Names of the metrics about rules and notifications, each with its label names."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = (
        re.match(r"(prometheus_(?:rule|template|notifications|config)_\w+)(\{.*\})? ", one) for one in lines
    )
    return {(one[1], *re.findall(r'(\w+)="', one[2] or "")) for one in found if one is not None}


def sent_alerts(server: Evaluator, start: int) -> list[str]:
    return sorted(json.dumps(one) for one in server.sink.alerts() if is_of_scenario(one, start))


@pytest.mark.slow
def test_rules_alerts_series_and_posts_are_those_of_prometheus(tmp_path: Path) -> None:
    with both_running(tmp_path, RULES) as (theirs, ours):
        # Both must have evaluated twice before the start: until then they restore and write no ALERTS.
        start = int(time.time()) + 4
        for server in (theirs, ours):
            server.write(scenario_body(samples(start)))
        wait_until(start + 2)
        wait_until(start + 5 + quiet_fraction(theirs))
        during = [without_measurements(own_groups(server)) for server in (theirs, ours)]
        alerts = [without_measurements(server.get("alerts")) for server in (theirs, ours)]
        wait_until(start + SECONDS)
        skip_if_too_slow(theirs, ours)
        over_time = [series_over_time(server, start) for server in (theirs, ours)]
        assert over_time[1] == over_time[0]
        assert during[1] == during[0]
        assert alerts[1] == alerts[0]
        assert sent_alerts(ours, start) == sent_alerts(theirs, start)
        check_golden(GOLDEN, recorded(theirs, start))
        assert {path for path, _, _ in ours.sink.requests} == {"/am/api/v2/alerts"}
        assert {kind for _, kind, _ in ours.sink.requests} == {"application/json"}
        managers = [server.get("alertmanagers") for server in (theirs, ours)]
        assert len(managers[0]["activeAlertmanagers"]) == len(managers[1]["activeAlertmanagers"]) == 1
        assert own_metrics(ours) == own_metrics(theirs)
        assert managers[0]["droppedAlertmanagers"] == managers[1]["droppedAlertmanagers"]
