"""A running server: amtool, our commands, SIGHUP, and kill -9 in the middle of a flush; what is imported."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.cli import main
from tests.engines import engine, running
from tests.notify.timeline import Sink, call, running_sink
from tests.ports import free_port
from tests.waiting import wait_for

CONFIG = """
route:
  receiver: hook
  group_by: [alertname]
  group_wait: 0s
  group_interval: 5m
  routes: [{receiver: pager, matchers: [severity=crit]}]
receivers:
- name: hook
  webhook_configs: [{url: 'SINK/hook'}]
- name: pager
"""


@contextmanager
def running_server(folder: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        sys.executable, "-m", "gpuscope", "server", "--alerting", folder / "alertmanager.yml",
        "--data", folder / "data", "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with running(command, f"{url}/-/ready") as process:
        yield url, process


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    with running_sink() as sink:
        (tmp_path / "alertmanager.yml").write_text(CONFIG.replace("SINK", sink.url))
        yield sink


def metric(url: str, name: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert match is not None, name
    return match[1]


def test_amtool_and_our_commands(tmp_path: Path, sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(tmp_path, free_port()) as (url, process):

        def amtool(*words: str) -> str:
            command: list[str | Path] = [
                engine("amtool"),
                f"--alertmanager.url={url}",
                "--no-version-check",
                *words,
            ]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            assert answer.returncode == 0, answer.stderr
            return answer.stdout

        amtool("alert", "add", "GpuHot", "node=n1", "--annotation=summary=hot")
        amtool("alert", "add", "GpuLost", "node=n2", "severity=crit")
        sink.wait_for(1)
        assert "GpuHot" in amtool("alert", "query", "node=n1")
        assert "GpuLost" not in amtool("alert", "query", "node=n1")
        silence_id = amtool("silence", "add", "-a", "me", "-c", "why", "-d", "1h", "node=n1").strip()
        assert silence_id in amtool("silence", "query")
        assert "GpuHot" not in amtool("alert", "query")
        assert "GpuHot" in amtool("alert", "query", "-s")
        assert "GpuHot" not in amtool("alert", "query", "-a")
        assert "GpuHot" not in amtool("alert", "query", "-i")
        assert "GpuLost" not in amtool("alert", "query", "-u")
        assert "GpuLost" in amtool("alert", "query", "--receiver=pager", "-o", "extended")
        assert "GpuHot" not in amtool("alert", "query", "-a", "-s", "--receiver=pager", "-o", "json")
        assert amtool("silence", "query", "-q", "node=n1").strip() == silence_id
        assert amtool("silence", "query", "-q", "--within=30m") == ""
        assert amtool("silence", "query", "-q", "--within=2h").strip() == silence_id
        updated = amtool("silence", "update", "-d", "2h", "-c", "new", silence_id, "-o", "json")
        assert json.loads(updated)[0]["comment"] == "new"
        exported = amtool("silence", "query", "-o", "json")
        amtool("silence", "expire", silence_id)
        assert silence_id not in amtool("silence", "query")
        assert silence_id in amtool("silence", "query", "--expired", "-o", "extended")
        (tmp_path / "silences.json").write_text(exported)
        amtool("silence", "import", "--force", str(tmp_path / "silences.json"))
        [imported] = json.loads(amtool("silence", "query", "-o", "json"))
        amtool("silence", "expire", imported["id"])
        assert amtool("config", "routes", "test", "severity=crit").strip() == "pager"
        amtool("config", "routes", "test", "--verify.receivers=hook", "severity=warn")
        assert "severity" in amtool("config", "routes", "show")
        assert "disabled" in amtool("cluster", "show")
        checking: list[str | Path] = [
            engine("amtool"),
            f"--alertmanager.url={url}",
            "alert",
            "query",
        ]  # asks for the version
        assert "GpuHot" in subprocess.run(checking, capture_output=True, text=True, check=True).stdout

        assert main(["alerts", "--server", url]) == 1
        out = capsys.readouterr().out
        assert "GpuHot" in out
        assert "node=n2" in out
        assert main(["silence", "add", "node=n1", "--comment", "x", "--for", "5m", "--server", url]) == 0
        made = capsys.readouterr().out.strip()
        assert main(["alerts", "node=n1", "--server", url]) == 0
        assert "no active alerts" in capsys.readouterr().out
        assert main(["alerts", "node", "--server", url]) == 2
        assert "alerts: 'node' is not a matcher such as node=n3" in capsys.readouterr().err
        assert main(["silence", "list", "--server", url]) == 0
        assert made in capsys.readouterr().out
        assert main(["silence", "expire", made, "--server", url]) == 0
        assert main(["silence", "expire", "unknown", "--server", url]) == 2
        assert "silence not found" in capsys.readouterr().err

        sink.answers = [400]  # which is not retried
        call("POST", f"{url}/api/v2/alerts", [{"labels": {"alertname": "Unheard"}}])
        wait_for(lambda: "failed" in outcomes(url), "the failure of the channel")
        assert main(["alerts", "--server", url]) == 1
        assert "channel hook/webhook[0] has failed since 2" in capsys.readouterr().err

        good = (tmp_path / "alertmanager.yml").read_text()
        (tmp_path / "alertmanager.yml").write_text("route: 1\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: metric(url, "alertmanager_config_last_reload_successful") == "0")
        assert "must be a mapping" in call("GET", f"{url}/api/notify")["reload_error"]
        assert main(["alerts", "--server", url]) == 1
        assert "the alerting file was not reloaded" in capsys.readouterr().err
        assert amtool("config", "routes", "test", "severity=crit").strip() == "pager"
        (tmp_path / "alertmanager.yml").write_text(good.replace("severity=crit", "severity=page"))
        call("POST", f"{url}/-/reload")
        assert metric(url, "alertmanager_config_last_reload_successful") == "1"
        assert amtool("config", "routes", "test", "severity=crit").strip() == "hook"
        assert main(["alerts", "--server", url]) == 1
        assert "was not reloaded" not in capsys.readouterr().err


def outcomes(url: str) -> list[str]:
    """Of all messages, once none is being sent."""
    found = [one["outcome"] for one in call("GET", f"{url}/api/notifications")["notifications"]]
    return [] if "sending" in found else found


def test_kill_9_in_a_flush_repeats_at_most_one_message_and_loses_none(tmp_path: Path, sink: Sink) -> None:
    alerts = [{"labels": {"alertname": f"A{n}"}} for n in range(5)]
    port = free_port()
    with running_server(tmp_path, port) as (url, process):
        call("POST", f"{url}/api/v2/alerts", alerts[:2])
        wait_for(lambda: outcomes(url) == ["sent", "sent"], "two messages in the log")
        sink.delay.clear()
        call("POST", f"{url}/api/v2/alerts", alerts)
        sink.wait_for_held(1)  # the sink has the third message; the server waits for the response
        process.kill()
        process.wait()
    sink.delay.set()
    sink.wait_for(3)
    with running_server(tmp_path, port) as (url, process):
        call("POST", f"{url}/api/v2/alerts", alerts)  # a rule engine sends again what fires
        wait_for(lambda: len({_name(body) for _, _, body in sink.requests}) == 5, "a message of each group")
        wait_for(lambda: outcomes(url), "the end of all messages")
    [held] = map(_name, sink.held)
    assert held in ("A2", "A3", "A4"), "the first two were in the log"
    expected = Counter({f"A{n}": 1 for n in range(5)}) + Counter({held: 1})
    assert Counter(_name(body) for _, _, body in sink.requests) == expected


def _name(body: bytes) -> str:
    return str(json.loads(body)["groupLabels"]["alertname"])


def test_apprise_is_imported_by_its_first_message_only() -> None:
    """It takes half a second and 44 MB."""
    program = (
        "import sys; from gpuscope.judge.notify.default_alerting import default_alerting; "
        "from gpuscope.judge.notify.alerting_config import build_channels; "
        "build_channels(default_alerting(['https://x.example', 'gotify://h/t'])); "
        "sys.exit('apprise' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
