"""Rules keep their schedule while eight clients query and a channel hangs, in a running `gpuscope up`."""

from __future__ import annotations

import json
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines import running
from tests.notify.timeline import running_sink
from tests.ports import free_port
from tests.rules.test_running import metric
from tests.waiting import wait_for

CLIENTS = 8
EVALUATIONS = 10
INTERVAL = "5s"
QUERY = "sum by (instance) (rate(gpuscope_gpu_energy_joules_total[5m])) + count by (instance) (gpuscope_gpu_up)"


@contextmanager
def querying(url: str) -> Iterator[list[int]]:
    """Eight clients that ask again as soon as they are answered; the number of answers of each."""
    stop = threading.Event()
    answers = [0] * CLIENTS
    query = urllib.parse.urlencode({"query": QUERY})

    def ask(number: int) -> None:
        while not stop.is_set():
            with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=120) as answer:
                json.load(answer)
            answers[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def total(url: str, name: str) -> float:
    return sum(map(float, metric(url, name)))


@pytest.mark.slow
def test_evaluation_keeps_its_schedule(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    with running_sink() as sink:
        sink.delay.clear()  # the channel takes a message and never answers
        command: list[str | Path] = [
            sys.executable, "-m", "gpuscope", "up", "--demo", "--scenario", "xid79", "--listen", address,
            "--data", tmp_path, "--evaluation-interval", INTERVAL, "--notify", f"{sink.url}/hook",
        ]  # fmt: skip
        with running(command, f"{url}/-/ready"):
            wait_for(lambda: "gpuscope_demo_history_ratio 1" in text(url), "the simulated history")
            missed = total(url, "prometheus_rule_group_iterations_missed_total")
            began = total(url, "prometheus_rule_group_iterations_total")
            groups = len(metric(url, "prometheus_rule_group_iterations_total"))
            with querying(url) as answers:
                wait_for(
                    lambda: (
                        total(url, "prometheus_rule_group_iterations_total") - began >= EVALUATIONS * groups
                    ),
                    "ten evaluations of each group",
                )
            assert total(url, "prometheus_rule_group_iterations_missed_total") == missed
            assert total(url, "prometheus_rule_evaluation_failures_total") == 0
            assert min(answers) > 0
            assert sink.requests == [], "the channel has answered nothing"


def text(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=120) as answer:
        body: str = answer.read().decode()
        return body
