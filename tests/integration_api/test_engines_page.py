"""What docs/engines.md says is so: its command lines are run against the engines, with the files it shows.

Only addresses are replaced, by those of engines started here; an agent has the demo source instead of this
machine's GPUs. Thanos and Mimir are slow ones: see test_shared_engines.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuscope.history.remote_write.sender import AGENT_QUEUE_BYTES, QUEUE_BYTES
from gpuscope.serve.api.proxy import EngineStats
from gpuscope.serve.own_metrics import build_families, engine_families
from tests.engines import (
    running,
    running_guarded_prometheus,
    running_mimir,
    running_prometheus,
    running_thanos,
    running_victoria_metrics,
)
from tests.integration_api.servers import GPUSCOPE, ask, wait_for
from tests.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
DEMO = ("--source", "demo", "--demo-gpus", "2", "--remote-write-interval", "1s")


@dataclass(frozen=True, slots=True)
class Section:
    commands: tuple[str, ...]
    files: Mapping[str, str]


def section(title: str) -> Section:
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert text, title
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    files = re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.DOTALL)
    return Section(tuple(commands), dict(files))


@contextmanager
def carried_out(written: Section, addresses: dict[str, str], folder: Path) -> Iterator[str]:
    """All command lines of a section at once; the URL of the server over the engine."""
    for name, text in written.files.items():
        (folder / name).write_text(text)
    over_engine = ""
    with ExitStack() as started:
        for number, line in enumerate(written.commands):
            for name, address in addresses.items():
                line = line.replace(name, address)
            program, command, *flags = shlex.split(line)
            assert program == "gpuscope"
            listen = f"127.0.0.1:{free_port()}"
            if command == "agent":
                addresses = {**addresses, "node1:9400": listen}
                flags += DEMO
            else:
                flags += ["--data", str(folder / f"data{number}")]
                flags += ["--scrape-interval", "1s"]
            ready = f"http://{listen}/-/ready"
            started.enter_context(running([*GPUSCOPE, command, *flags, "--listen", listen], ready, cwd=folder))
            if "--store" in flags:
                over_engine = f"http://{listen}"
        yield over_engine


def check(title: str, addresses: dict[str, str], folder: Path) -> None:
    written = section(title)
    scraped = sum("--targets" in line for line in written.commands)
    asked = {"query": "count by (instance) (gpuscope_gpu_power_watts)"}
    with carried_out(written, addresses, folder) as url:

        def instances() -> list[str]:
            answer = ask(url, "/api/v1/query", asked)
            assert answer.status == 200, answer
            return [one["value"][1] for one in answer.body["data"]["result"]]

        wait_for("all that is sent to arrive", lambda: instances() == ["2"] * (1 + scraped))
        wait_for("the live picture to have them", lambda: bool(ask(url, "/api/live").body["gpus"]))


def host(url: str) -> str:
    return urlsplit(url).netloc


def test_prometheus(tmp_path: Path) -> None:
    with running_prometheus() as url:
        check("Prometheus", {"prometheus:9090": host(url)}, tmp_path)


def test_victoria_metrics(tmp_path: Path) -> None:
    with running_victoria_metrics(flags=("-search.latencyOffset=0s",)) as url:
        check("VictoriaMetrics", {"victoria-metrics:8428": host(url)}, tmp_path)


@pytest.mark.slow
def test_thanos(tmp_path: Path) -> None:
    with running_thanos() as engine:
        addresses = {"thanos-receive:19291": host(engine.write), "thanos-query:10902": host(engine.query)}
        check("Thanos", addresses, tmp_path)


@pytest.mark.slow
def test_mimir(tmp_path: Path) -> None:
    with running_mimir() as engine:
        check("Mimir", {"mimir:8080": host(engine.query)}, tmp_path)


def test_passwords_and_tls(tmp_path: Path) -> None:
    (tmp_path / "engine.password").write_text("s:cret\n")
    with running_guarded_prometheus(tmp_path, "gpuscope", "s:cret") as url:
        check("Passwords and TLS", {"guarded:9090": host(url)}, tmp_path)


def test_a_wrong_password_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "engine.password").write_text("guess\n")
    written = section("Passwords and TLS")
    (tmp_path / "engine.yml").write_text(written.files["engine.yml"])
    with running_guarded_prometheus(tmp_path, "gpuscope", "s:cret") as engine:
        listen = f"127.0.0.1:{free_port()}"
        flags = ["--store", engine, "--store-http-config", f"{tmp_path}/engine.yml", "--listen", listen]
        with running([*GPUSCOPE, "server", *flags], f"http://{listen}/-/ready"):
            answer = ask(f"http://{listen}", "/api/v1/query", {"query": "1"})
            assert answer.status == 502
            assert answer.body["error"].startswith(
                f"{engine} refuses our credentials with 401 (Unauthorized): --store-tenant"
            )


def test_the_own_metrics_are_these() -> None:
    stats = EngineStats(up=True)
    rows = re.findall(r"^\| `(gpuscope_\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [(one.name, one.help) for one in (*build_families(), *engine_families(stats))]


def test_the_limits_of_memory_are_these() -> None:
    assert f"{AGENT_QUEUE_BYTES >> 20} MiB in an agent and {QUEUE_BYTES >> 20} MiB in a server" in PAGE
