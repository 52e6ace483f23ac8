"""From a simulated fault to the message: `gpuscope up --demo --scenario … --notify …` with real sinks."""

from __future__ import annotations

import email
import json
import sys
import time
import urllib.request
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from gpuscope.judge.rules.shipped.rule_files import group_text, shipped_groups
from tests.engines import running
from tests.notify.smtp_sink import SmtpSink, running_smtp
from tests.notify.timeline import Sink, running_sink
from tests.ports import free_port
from tests.waiting import wait_for


def hook_body(sink: Sink, alert: str) -> dict[str, Any] | None:
    for _, path, body in list(sink.requests):
        document: dict[str, Any] = json.loads(body)
        if path == "/hook" and document["groupLabels"]["alertname"] == alert:
            return document
    return None


def mail_about(smtp: SmtpSink, alert: str) -> EmailMessage | None:
    for mail in list(smtp.mails):
        message = email.message_from_bytes(mail.content, policy=default)
        if alert in message["subject"]:
            return message
    return None


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/{path}", timeout=30) as answer:
        return json.load(answer)


def at_once(folder: Path) -> list[str | Path]:
    """Options for one node with the shipped rules, whose alert fires after a second instead of a minute."""
    [gpu_rules] = [group for group in shipped_groups() if group.name == "gpuscope-gpu"]
    before, alert, after = group_text(gpu_rules, "{{ externalURL }}").partition("- alert: GpuNotAnswering\n")
    assert after.index("for: 1m") < after.index("labels:")
    file = folder / "gpu_rules.yml"
    file.write_text(before + alert + after.replace("for: 1m", "for: 1s", 1))
    return ["--demo-nodes", "1", "--rules", file]


@pytest.mark.parametrize("is_shipped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_gpu_that_falls_off_the_bus_reaches_the_channels(is_shipped: bool, tmp_path: Path) -> None:
    # slow-network keeps a job on GPU 3 for hours: at some times of the day nobody uses that GPU.
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    with running_sink() as sink, running_smtp() as smtp:
        command = [
            sys.executable, "-m", "gpuscope", "up", "--demo", "--scenario", "slow-network,xid79@+3s",
            "--listen", address, "--data", tmp_path / "data", "--evaluation-interval", "1s",
            "--notify", f"{sink.url}/hook", "--notify",
            f"mailto://127.0.0.1:{smtp.port}?to=ops@example.org&from=gpus@example.org&tls=no",
            "--heartbeat", f"{sink.url}/beat", *([] if is_shipped else at_once(tmp_path)),
        ]  # fmt: skip
        started = time.time()
        with running(command, f"{url}/-/healthy"):
            body = wait_for(lambda: hook_body(sink, "GpuNotAnswering"), "the webhook's body")
            message = wait_for(lambda: mail_about(smtp, "GpuNotAnswering"), "the mail")
            wait_for(lambda: [path for _, path, _ in sink.requests if path == "/beat"], "the heartbeat")
            wait_for(lambda: not get(url, "api/notifications?outcome=sending")["notifications"], "all outcomes")
            history = get(url, "api/notifications")["notifications"]
            own = "api/v1/query?query=alertmanager_notifications_failed_total"
            wait_for(
                lambda: (
                    {one["metric"]["integration"] for one in get(url, own)["data"]["result"]}
                    == {"email", "webhook"}
                ),
                "own metrics in the store",
            )
    assert body is not None
    [alert] = body["alerts"]
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["next_step"].startswith("drain the node and power-cycle it")
    assert alert["generatorURL"].startswith(f"{url}/graph?")
    assert message is not None
    assert message["subject"] == f"[FIRING:1] GpuNotAnswering critical ({alert['labels']['instance']} GPU 3)"
    plain = message.get_body(("plain",))
    assert plain is not None
    check_text(plain.get_content(), alert, url)
    told = {one["channel"]: one for one in history if one["group_labels"].get("alertname") == "GpuNotAnswering"}
    assert {name: one["outcome"] for name, one in told.items()} == {
        "notify/email[0]": "sent",
        "notify/webhook[0]": "sent",
    }
    assert told["notify/email[0]"]["sent_to"] == "ops@example.org"
    assert all(one["started_at"] >= started for one in history)


def check_text(text: str, alert: dict[str, Any], url: str) -> None:
    """Node, GPU, model, owner, job or pod, since when, meaning, next step, and a link to the page."""
    lines = dict(line.removeprefix("- ").split(": ", 1) for line in text.splitlines() if line.startswith("- "))
    labels = alert["labels"]
    assert lines["Node"] == labels["instance"]
    assert lines["GPU"] == labels["gpu"]
    assert lines["Model"].startswith("NVIDIA ")
    assert lines["UUID"] == labels["uuid"]
    assert " (job " in lines["Owner"] or " (pod " in lines["Owner"], lines["Owner"]
    assert lines["Since"] == alert["startsAt"][:19] + "Z"
    assert "The GPU does not answer on PCIe any more." in lines["Meaning"]
    assert lines["Next step"].startswith("drain the node and power-cycle it")
    assert lines["GPU page"] == f"{url}/#/gpu/{labels['uuid']}"
    assert lines["Expression"].startswith(f"{url}/graph?")
    assert lines["Runbook"] == f"{url}/explain/alert/GpuNotAnswering"
    assert f"All alerts: {url}/#/alerts" in text
