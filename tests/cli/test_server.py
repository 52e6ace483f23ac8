"""`gpuscope server` as a process: wrong settings, reload, and real engines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import yaml

from gpuscope.cli import main
from tests.engines import (
    engine,
    running,
    running_node_exporter,
    running_prometheus,
    running_victoria_metrics,
)
from tests.ports import free_port
from tests.scrape.exporters import serving, text
from tests.waiting import wait_for

COMMAND = (sys.executable, "-m", "gpuscope", "server")


@contextmanager
def server(data: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    address = f"127.0.0.1:{free_port()}"
    command: Sequence[str] = [*COMMAND, "--listen", address, "--data", str(data), *flags]
    with running(command, f"http://{address}/-/ready") as process:
        yield f"http://{address}", process


def ask(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(
        f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30
    ) as answer:
        return json.load(answer)["data"]


def vector(url: str, expression: str, **parameters: str) -> dict[tuple[tuple[str, str], ...], str]:
    found = ask(url, "query", query=expression, **parameters)["result"]
    return {tuple(sorted(one["metric"].items())): one["value"][1] for one in found}


T = TypeVar("T")


def eventually(check: Callable[[], T | Literal[False] | None]) -> T:
    """Polls until the result is true and returns it; fails when something is really wrong."""

    def look() -> T | Literal[False] | None:
        try:
            return check()
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            return None

    return wait_for(look)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config", "nosuch.yml"], ["--config nosuch.yml: there is no such file"]),
        (["--targets", ","], ["--targets", "names no target"]),
        (["--targets", "a:1", "--config", "x.yml"], ["--config and --targets"]),
        (["--store", "nonsense"], ["--store nonsense", "not an http"]),
        (["--store", "http://x", "--targets", "a:1"], ["--targets with --store"]),
        (["--remote-write", "nonsense"], ["--remote-write nonsense"]),
        (["--listen", "0.0.0.0:0", "--proxy-auth-header", "X-User"], ["X-User", "--proxy-auth-from"]),
        (["--store", "http://x", "--store-http-config", "nosuch.yml"], ["--store-http-config nosuch.yml"]),
        (["--scrape-interval", "soon"], ["--scrape-interval", "soon"]),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path,
    flags: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["server", "--data", str(tmp_path / "data"), *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in words:
        assert word in said


def test_scrape_reload_and_a_second_server_on_the_same_folder(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    with serving({"/metrics": text("a 1\n"), "/more": text("b 2\n")}) as address:
        one = f"{{job_name: one, scrape_interval: 1s, static_configs: [{{targets: ['{address}']}}]}}"
        two = one.replace("one", "two, metrics_path: /more")
        config.write_text(f"scrape_configs: [{one}]")
        with server(tmp_path / "data", "--config", str(config)) as (url, process):
            eventually(lambda: vector(url, "a"))
            second = subprocess.run(
                [*COMMAND, "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"],
                capture_output=True,
                text=True,
            )
            assert second.returncode == 2
            assert str(tmp_path / "data") in second.stderr
            config.write_text("scrape_configs: [")
            process.send_signal(signal.SIGHUP)
            config.write_text(f"scrape_configs: [{one}, {two}]")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: vector(url, "b"))
            assert yaml.safe_load(ask(url, "status/config")["yaml"]) == yaml.safe_load(config.read_text())
            pools = [target["scrapePool"] for target in ask(url, "targets")["activeTargets"]]
            assert sorted(pools) == ["one", "two"]
            config.write_text(f"scrape_configs: [{one}]")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: not vector(url, "b"))
            eventually(lambda: vector(url, "a"))
        assert process.returncode == 0


def test_the_query_log_is_reopened_on_reload(tmp_path: Path) -> None:
    config, queries = tmp_path / "prometheus.yml", tmp_path / "queries.log"
    config.write_text("global: {query_log_file: queries.log}")
    with server(tmp_path / "data", "--config", str(config)) as (url, process):
        vector(url, "first")
        queries.rename(tmp_path / "moved")
        process.send_signal(signal.SIGHUP)
        eventually(queries.exists)
        vector(url, "second")
        assert "second" in queries.read_text()
        assert "first" in (tmp_path / "moved").read_text()


def test_history_survives_a_restart(tmp_path: Path) -> None:
    with serving({"/metrics": text("a 1\n")}) as address:
        flags = ("--targets", address, "--scrape-interval", "1s")
        with server(tmp_path / "data", *flags) as (url, _):
            eventually(lambda: vector(url, "a"))
            at = str(time.time())
    with server(tmp_path / "data") as (url, _):
        assert vector(url, "a", time=at)


@pytest.mark.engine("prometheus")
def test_prometheus_federates_from_and_writes_to_gpuscope(tmp_path: Path) -> None:
    engine("prometheus")
    with (
        serving({"/metrics": text('m{x="1"} 5\n')}) as target,
        server(tmp_path / "data", "--targets", target, "--scrape-interval", "1s") as (url, _),
    ):
        ours = urllib.parse.urlsplit(url).netloc
        config = f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, external_labels: {{site: lab}}}}
scrape_configs:
- {{job_name: federate, honor_labels: true, metrics_path: /federate,
    params: {{'match[]': ['{{job="gpuscope"}}']}}, static_configs: [{{targets: ['{ours}']}}]}}
- {{job_name: self, static_configs: [{{targets: ['{target}']}}]}}
remote_write: [{{url: '{url}/api/v1/write', queue_config: {{batch_send_deadline: 200ms}}}}]
"""
        with running_prometheus(config) as prometheus:
            federated = eventually(lambda: vector(prometheus, 'm{job="gpuscope"}'))
            assert federated == {
                (("__name__", "m"), ("instance", target), ("job", "gpuscope"), ("x", "1")): "5"
            }
            written = eventually(lambda: vector(url, 'm{job="self",site="lab"}'))
            assert list(written.values()) == ["5"]
            assert eventually(lambda: vector(url, 'up{job="self",site="lab"}'))
            at = str(time.time())
            theirs = eventually(lambda: vector(prometheus, 'count({job="self"})', time=at))
            assert eventually(lambda: vector(url, 'count({job="self",site="lab"})', time=at) == theirs)


@pytest.mark.engine("prometheus")
@pytest.mark.engine("node_exporter")
def test_scrapes_prometheus_and_node_exporter(tmp_path: Path) -> None:
    with running_prometheus() as prometheus, running_node_exporter() as node:
        both = ",".join(urllib.parse.urlsplit(one).netloc for one in (prometheus, node))
        with server(tmp_path / "data", "--targets", both, "--scrape-interval", "1s") as (url, _):
            up = eventually(lambda: (found := vector(url, "up == 1")) and len(found) == 2 and found)
            assert len(up) == 2
            assert vector(url, "prometheus_build_info")
            assert vector(url, "node_boot_time_seconds")
            assert ask(url, "metadata", metric="node_boot_time_seconds")["node_boot_time_seconds"]
            errors = {one["lastError"] for one in ask(url, "targets")["activeTargets"]}
            assert errors == {""}


@pytest.mark.engine("victoria-metrics")
@pytest.mark.engine("prometheus")
def test_writes_to_engines_and_queries_them(tmp_path: Path) -> None:
    page = "".join(f'm{{gpu="{n}"}} {n * 1.5}\n' for n in range(20))
    with (
        running_victoria_metrics(flags=["-search.latencyOffset=0s"]) as victoria,
        running_prometheus() as prometheus,
        serving({"/metrics": text(page)}) as target,
    ):
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, external_labels: {site: lab}}\n"
            f"scrape_configs: [{{job_name: j, static_configs: [{{targets: ['{target}']}}]}}]\n"
            f"remote_write: [{{url: '{prometheus}/api/v1/write'}}]\n"
        )
        flags = ("--config", str(config), "--remote-write", f"{victoria}/api/v1/write")
        with server(tmp_path / "data", *flags) as (url, _):
            eventually(lambda: len(vector(prometheus, "m")) == 20)
            eventually(lambda: len(vector(victoria, "m")) == 20)
            at = str(time.time())
            expected = {**vector(url, "sum by (job) (m)", time=at), **vector(url, "max(m)", time=at)}
        for behind in (victoria, prometheus):
            with server(tmp_path / "unused", "--store", behind) as (over, _):
                through = {**vector(over, "sum by (job) (m)", time=at), **vector(over, "max(m)", time=at)}
                assert through == expected
                assert ask(over, "label/site/values") == ["lab"]
                with pytest.raises(urllib.error.HTTPError) as caught:
                    ask(over, "query", query="sum(")
                caught.value.close()
                assert caught.value.code in (400, 422)
    assert not (tmp_path / "unused").exists()


def test_an_agent_with_remote_write_does_not_import_numpy() -> None:
    code = (
        "import gpuscope.history.remote_write.sender, gpuscope.history.remote_write.sender, sys\n"
        "import gpuscope.history.remote_write.sender, gpuscope.cli.wiring.remote_write\n"
        "names = ('numpy', 'httpx2', 'yaml', 'http.client', 'textual', 'rich')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
