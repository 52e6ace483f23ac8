"""Clients that were written for Prometheus: promtool, prometheus-api-client, and Prometheus itself."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines import engine, running_prometheus
from tests.integration_api.servers import Day, ask, differences, running_gpuscope, wait_for
from tests.integration_api.test_same_answers import sorted_labels
from tests.promql.prometheus import same
from tests.scrape.exporters import serving, text


def promtool(*arguments: str) -> str:
    done = subprocess.run([engine("promtool"), "query", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_promtool(gpuscope: str, prometheus: str, day: Day) -> None:
    def both(*command: str) -> tuple[str, str]:
        at = command.index("URL")
        return promtool(*command[:at], gpuscope, *command[at + 1 :]), promtool(
            *command[:at], prometheus, *command[at + 1 :]
        )

    span = (f"--start={day.start}", f"--end={day.end}")
    for command in (
        ("instant", f"--time={day.middle}", "URL", "sort(watts)"),
        ("instant", f"--time={day.middle}", "URL", "count(watts) + 1"),
        ("range", *span, "--step=5m", "URL", "max by (node) (watts)"),
        ("labels", *span, "URL", "node"),
        ("labels", *span, "URL", "__name__"),
    ):
        ours, theirs = both(*command)
        assert ours == theirs
        assert ours.strip(), command
    ours, theirs = both("series", '--match=watts{node="a"}', *span, "URL")
    assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
    assert len(ours.splitlines()) == 4


def test_promtool_says_what_is_wrong(gpuscope: str) -> None:
    command: list[str | Path] = [engine("promtool"), "query", "instant", gpuscope, "sum("]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "unclosed left parenthesis" in done.stderr


def test_prometheus_api_client(gpuscope: str, day: Day) -> None:
    package = pytest.importorskip("prometheus_api_client")
    client = package.PrometheusConnect(url=gpuscope)
    try:
        assert client.check_prometheus_connection()
        assert "watts" in client.all_metrics()
        assert client.get_label_values("node")[:3] == ["a", "b", "c"]
        assert "gpu" in client.get_label_names()
        [one] = client.custom_query("count(watts)", params={"time": day.middle})
        assert one["value"] == [day.middle, "12"]
        when = [datetime.fromtimestamp(at, UTC) for at in (day.middle, day.middle + 600)]
        rows = client.custom_query_range('watts{node="a"}', *when, step="60")
        assert [len(row["values"]) for row in rows] == [11] * 4
        rows = client.get_metric_range_data("watts", {"node": "a", "gpu": "1"}, *when)
        assert len(rows[0]["values"]) >= 40, "every sample, not every step"
        assert client.get_targets()["activeTargets"] == []
    finally:
        client._session.close()


EXPOSITION = """\
# HELP temp_celsius How warm.
# TYPE temp_celsius gauge
temp_celsius{gpu="0"} 41.5
temp_celsius{gpu="1",name="odd\\"\\n\\\\x"} 42
# HELP work_joules_total How much.
# TYPE work_joules_total counter
work_joules_total{gpu="0"} 1e+21
"""


@contextmanager
def both_scraping(folder: Path) -> Iterator[tuple[str, str]]:
    """Our server and a real Prometheus with the same configuration file, scraping the same two targets."""
    with serving({"/metrics": text(EXPOSITION)}) as address:
        config = folder / "prometheus.yml"
        config.write_text(
            f"""\
global: {{scrape_interval: 1s, scrape_timeout: 900ms}}
scrape_configs:
  - job_name: gpu
    static_configs:
      - {{targets: ["{address}"], labels: {{rack: r1}}}}
      - {{targets: ["127.0.0.1:1"], labels: {{rack: r2}}}}
      - {{targets: ["dropped:1"], labels: {{rack: r3}}}}
    relabel_configs:
      - {{source_labels: [rack], regex: r3, action: drop}}
"""
        )
        with (
            running_gpuscope(folder / "store", "--config", config) as ours,
            running_prometheus(config.read_text()) as theirs,
        ):
            for url in (ours, theirs):
                wait_for("a second scrape", partial(_exceeds, url, "count_over_time(temp_celsius[1m])", 1))
                wait_for("a failed scrape", partial(_exceeds, url, 'up{rack="r2"} + 1', 0))
            yield ours, theirs


def _exceeds(url: str, query: str, bound: float) -> bool:
    return _value(url, query) > bound


def _value(url: str, query: str) -> float:
    result = ask(url, "/api/v1/query", {"query": f"min({query})"}).body["data"]["result"]
    return float(result[0]["value"][1]) if result else -1.0


def test_scraped_targets_and_metadata(tmp_path: Path) -> None:
    with both_scraping(tmp_path) as pair:
        ours, theirs = (ask(url, "/api/v1/targets").body["data"] for url in pair)
        assert len(ours["activeTargets"]) == 2
        for one in (ours, theirs):
            one["activeTargets"].sort(key=lambda target: sorted_labels(target["labels"]))
            for target in one["activeTargets"]:
                assert target.pop("lastScrape") > "2020"
                assert target.pop("lastScrapeDuration") > 0
                # Prometheus names its own host there, and the words of an error are its own.
                target["globalUrl"] = bool(target["globalUrl"])
                target["lastError"] = bool(target["lastError"])
        assert not list(differences(ours, theirs))
        ours, theirs = (ask(url, "/api/v1/metadata").body for url in pair)
        assert ours == theirs
        for query in (
            "temp_celsius",
            "work_joules_total",
            "up",
            "scrape_samples_scraped",
            "scrape_series_added",
        ):
            found = [ask(url, "/api/v1/query", {"query": query}).body["data"]["result"] for url in pair]
            mine, its = ({tuple(sorted_labels(o["metric"])): o["value"][1] for o in some} for some in found)
            assert mine == its
            assert mine, query


def test_a_prometheus_federates_from_us(gpuscope: str, tmp_path: Path) -> None:
    with both_scraping(tmp_path) as (ours, _):
        address = ours.removeprefix("http://")
        config = f"""\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: federate
    honor_labels: true
    metrics_path: /federate
    params: {{"match[]": ['{{__name__=~"temp_celsius|work_joules_total|up"}}']}}
    static_configs: [{{targets: ["{address}"]}}]
"""
        with running_prometheus(config) as federating:
            wait_for("federation", lambda: _value(federating, 'temp_celsius{rack="r1"}') > 0)
            for query in ("temp_celsius", "work_joules_total", 'up{job="gpu"}'):
                mine, its = (_values(url, query) for url in (ours, federating))
                assert mine == its
                assert mine, query


def _values(url: str, query: str) -> dict[tuple[tuple[str, str], ...], str]:
    result: list[dict[str, Any]] = ask(url, "/api/v1/query", {"query": query}).body["data"]["result"]
    return {tuple(sorted_labels(one["metric"])): one["value"][1] for one in result}


@pytest.mark.parametrize("message", ["prometheus.WriteRequest", "io.prometheus.write.v2.Request"])
def test_a_prometheus_remote_writes_to_us(tmp_path: Path, message: str) -> None:
    with serving({"/metrics": text(EXPOSITION)}) as target, running_gpuscope(tmp_path / "store") as ours:
        config = f"""\
global: {{scrape_interval: 1s, external_labels: {{site: far}}}}
scrape_configs: [{{job_name: gpu, static_configs: [{{targets: ["{target}", "127.0.0.1:1"]}}]}}]
remote_write:
  - {{url: "{ours}/api/v1/write", protobuf_message: {message}, queue_config: {{batch_send_deadline: 200ms}}}}
"""
        with running_prometheus(config, flags=("--enable-feature=metadata-wal-records",)) as sender:
            wait_for("remote write", lambda: _value(ours, 'count_over_time(temp_celsius{site="far"}[1m])') > 3)
            # What it has sent is what it has: the same raw samples, but for those still on their way.
            for query in ("temp_celsius", "work_joules_total", "up", "scrape_samples_scraped"):
                at = {"query": f"{query}[1m]"}
                sent = ask(sender, "/api/v1/query", at).body["data"]["result"]
                kept = {
                    tuple(sorted_labels(one["metric"])): one["values"]
                    for one in ask(ours, "/api/v1/query", at).body["data"]["result"]
                }
                assert len(kept) == len(sent) > 0
                for one in sent:
                    values = kept[tuple(sorted_labels({**one["metric"], "site": "far"}))]
                    common = min(len(values), len(one["values"]))
                    assert common > 2
                    for (t1, v1), (t2, v2) in zip(values[:common], one["values"][:common], strict=True):
                        assert t1 == t2
                        assert same(float(v1), float(v2))
            with urllib.request.urlopen(f"{sender}/metrics", timeout=60) as answer:
                own = answer.read().decode()
            assert re.findall(r"^prometheus_remote_storage_samples_failed_total\S* (\S+)$", own, re.M) == ["0"]


def test_grafana_finds_a_prometheus(gpuscope: str) -> None:
    """What Grafana's data source asks for when somebody presses "Save & test"."""
    assert ask(gpuscope, "/api/v1/status/buildinfo").body["data"]["version"].startswith("3.")
    query = {"query": "1+1", "time": "4"}
    assert ask(gpuscope, "/api/v1/query", query, post=True).body["data"]["result"] == [4, "2"]
    with urllib.request.urlopen(f"{gpuscope}/-/healthy", timeout=60) as answer:
        assert answer.status == 200
