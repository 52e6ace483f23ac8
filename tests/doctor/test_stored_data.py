"""`doctor --server`: what is missing in a server that answers, on real Prometheus servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import yaml

from gpuscope.cli import main
from gpuscope.model.doctor_check import CheckResult, Verdict
from gpuscope.serve.doctor.server_alerts import check_stored_data
from gpuscope.serve.doctor.server_reachability import check_data, check_server, parse_server_url
from tests.doctor.test_server_reachability import serving
from tests.engines import running_prometheus
from tests.ports import free_port
from tests.render.dashboard_queries import count, port_of, running_agent
from tests.waiting import wait_for


def data_of(base: str) -> list[CheckResult]:
    url = parse_server_url(base)
    assert all(result.verdict is not Verdict.BAD for result in check_server(url))
    return list(check_data(url))


def problems(results: list[CheckResult]) -> list[str]:
    assert all(result.fix for result in results if result.verdict is not Verdict.GOOD)
    return [result.what for result in results if result.verdict is Verdict.BAD]


@contextmanager
def scraping(families: str, ready: str, labels: dict[str, str], **job: Any) -> Iterator[str]:
    """A Prometheus that scrapes a demo agent, whose target has these labels."""
    with ExitStack() as stack:
        agent = stack.enter_context(running_agent("--source", "demo", "--families", families))
        targets = [{"targets": [f"127.0.0.1:{port_of(agent)}"], "labels": labels}]
        scrape = {"job_name": "gpu", "scrape_interval": "1s", "static_configs": targets, **job}
        base = stack.enter_context(running_prometheus(yaml.safe_dump({"scrape_configs": [scrape]})))
        wait_for(lambda: count(base, ready), ready)
        yield base


def test_a_server_that_scrapes_nothing_has_empty_dashboards(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    config = {"scrape_configs": [{"job_name": "gpu", "scrape_interval": "1s",
                                  "static_configs": [{"targets": [nowhere]}]}]}  # fmt: skip
    with running_prometheus(yaml.safe_dump(config)) as base:
        wait_for(lambda: count(base, "up == 0"), "the target to be down")
        found = problems(data_of(base))
        assert main(["doctor", "--server", base, "--json"]) == 1
    assert found == [
        "the server has no GPU metrics: pages and dashboards are empty",
        f"the server cannot scrape gpu {nowhere}",
    ]
    printed = json.loads(capsys.readouterr().out)
    assert {"what", "fix", "verdict"} == set(printed[-1])
    assert found[0] in [row["what"] for row in printed]


def test_a_server_with_another_family_is_told_which_flag_is_missing() -> None:
    with scraping("dcgm", "DCGM_FI_DEV_GPU_TEMP", {}) as base:
        [found] = [result for result in data_of(base) if result.verdict is Verdict.BAD]
    assert found.what.startswith("the server has metrics of dcgm-exporter, but no gpuscope_*")
    assert "--families native,dcgm" in found.fix


METRICS = b'gpuscope_gpu_info{uuid="a"} 1\ngpuscope_process_memory_bytes{namespace="ml",pod="train"} 1\n'


@pytest.mark.parametrize("honor", [False, True])
def test_a_label_clash_is_found_with_the_line_to_change(honor: bool) -> None:
    """The target has a namespace of its own, as one that Kubernetes' discovery found."""
    with serving(200, METRICS, {"content-type": "text/plain; version=0.0.4"}) as port:
        targets = {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "monitoring", "pod": "agent-x7"}}
        job = {"job_name": "gpu", "scrape_interval": "1s", "honor_labels": honor, "static_configs": [targets]}
        with running_prometheus(yaml.safe_dump({"scrape_configs": [job]})) as base:
            wait_for(lambda: count(base, "gpuscope_process_memory_bytes"), "a scrape")
            found = [result for result in data_of(base) if result.verdict is Verdict.BAD]
    assert len(found) == (0 if honor else 1)
    assert all("exported_namespace" in one.what and "honorLabels: true" in one.fix for one in found)


def test_missing_rules_are_a_note() -> None:
    answers = {"count(gpuscope_gpu_info)": 8.0}

    def ask(query: str) -> list[tuple[dict[str, str], float]]:
        return [({}, value) for part, value in answers.items() if part in query]

    results = list(check_stored_data(ask))
    [rules] = [result for result in results if result.verdict is Verdict.NOTE]
    assert "alert rules are not loaded" in rules.what
