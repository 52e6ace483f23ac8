"""One gpuscope and one Prometheus with the same data: two hours of the past, and an exporter that never moves.

The exporter is scraped by both and says the same every second, so that a question about now, asked of one after
the other, has one answer. Both find it by file SD, and only after the past is stored: neither takes samples far
behind its newest.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.engines import running_prometheus
from tests.integration_api.servers import GPUSCOPE, Day, ask, recent_data, running_gpuscope, wait_for
from tests.local_server import QuietHandler, serving_http
from tests.promql.prometheus import fill

GOLDEN = Path(__file__).parent.parent / "golden" / "models" / "h100.native.prom"
PODS = """
# HELP gpuscope_owner_sm_ratio Share of the SMs' time their processes used.
# TYPE gpuscope_owner_sm_ratio gauge
gpuscope_owner_sm_ratio{kind="pod",namespace="ml",name="trainer-0",gpu="0",uuid="GPU-0"} 0.75
gpuscope_owner_sm_ratio{kind="pod",namespace="ml",name="trainer-0",gpu="1",uuid="GPU-1"} 0.25
gpuscope_owner_sm_ratio{kind="pod",namespace="ml",name="trainer-1",gpu="2",uuid="GPU-2"} 0.93
gpuscope_owner_sm_ratio{kind="pod",namespace="ml",name="notebook",gpu="3",uuid="GPU-3"} 0
gpuscope_owner_sm_ratio{kind="pod",namespace="web",name="trainer-0",gpu="4",uuid="GPU-4"} 0.5
gpuscope_owner_sm_ratio{kind="user",namespace="",name="ann",gpu="5",uuid="GPU-5"} 1
# HELP gpuscope_owner_memory_bytes GPU memory the processes of a user, pod or job hold.
# TYPE gpuscope_owner_memory_bytes gauge
gpuscope_owner_memory_bytes{kind="pod",namespace="ml",name="trainer-0",gpu="0",uuid="GPU-0"} 8589934592
gpuscope_owner_memory_bytes{kind="pod",namespace="ml",name="trainer-0",gpu="1",uuid="GPU-1"} 1073741824
gpuscope_owner_memory_bytes{kind="pod",namespace="ml",name="trainer-1",gpu="2",uuid="GPU-2"} NaN
"""
SCRAPES = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpus
    file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""


@dataclass(frozen=True, slots=True)
class Pair:
    gpuscope: str
    prometheus: str
    day: Day


@dataclass(frozen=True, slots=True)
class Locked:
    """A server that asks who is there, and who may come in."""

    url: str
    user: str
    password: str
    token: str


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("clients")
    targets, config = folder / "targets.json", folder / "scrapes.yml"
    targets.write_text("[]")
    config.write_text(SCRAPES.format(targets=targets))
    day = recent_data()
    with (
        running_exporter(GOLDEN.read_text().removesuffix("# EOF\n") + PODS.lstrip()) as exporter,
        running_prometheus(config.read_text()) as prometheus,
        running_gpuscope(folder / "store", "--config", config) as gpuscope,
    ):
        for url in (gpuscope, prometheus):
            fill(url, day.series)
        targets.write_text(json.dumps([{"targets": [exporter]}]))
        for url in (gpuscope, prometheus):
            wait_for("a scrape", partial(_is_scraped, url))
        yield Pair(gpuscope, prometheus, day)


@pytest.fixture(scope="session")
def through(pair: Pair) -> Iterator[Pair]:
    """The same Prometheus, asked through a gpuscope that keeps nothing itself."""
    with running_gpuscope(None, "--store", pair.prometheus) as url:
        yield Pair(url, pair.prometheus, pair.day)


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    data = tmp_path_factory.mktemp("locked") / "store"
    password = "correct horse battery"
    _user("add", "ann", data, password)
    token = _user("token", "grafana", data).strip()
    with running_gpuscope(data, "--login", "always") as url:
        yield Locked(url, "ann", password, token)


def _user(action: str, name: str, data: Path, typed: str = "") -> str:
    command = [*GPUSCOPE, "user", action, name, "--data", str(data)]
    done = subprocess.run(command, input=typed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _is_scraped(url: str) -> bool:
    found = ask(url, "/api/v1/query", {"query": "up == 1"}).body["data"]["result"]
    return bool(found)


@contextmanager
def running_exporter(text: str) -> Iterator[str]:
    class Answers(QuietHandler):
        def do_GET(self) -> None:
            self.answer(text.encode(), "text/plain; version=0.0.4")

    with serving_http(Answers) as port:
        yield f"127.0.0.1:{port}"
