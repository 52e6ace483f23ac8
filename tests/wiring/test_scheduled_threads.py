"""The idle policy and the digest as `server` runs them: real samples, commands and mail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

import numpy as np
import pytest

from gpuscope.errors import UsageError
from gpuscope.reports.digest_schedule import digest_range, last_due
from gpuscope.rules.alert import Alert
from gpuscope.series import Series
from gpuscope.settings import Settings
from gpuscope.wiring.digest import DigestThread
from gpuscope.wiring.idle_policy import IdlePolicyThread
from tests.notify.smtp_sink import running_smtp
from tests.reports.test_counter_growth import END_MS
from tests.reports.test_usage import FLEET, SampleEngine
from tests.rules.rig import HeldClock, KeptAlerts


def sample(metric: str, value: float, **labels: str) -> Series:
    pairs = tuple(sorted({"__name__": metric, "instance": "n1:9400", **labels}.items()))
    return Series(pairs, np.array([END_MS - 5_000], np.int64), np.array([value], float))


def idle_job(minutes: float) -> list[Series]:
    owner = {"kind": "job", "name": "17"}
    return [
        sample("gpuscope_owner_idle_seconds", 60 * minutes, gpu="0", uuid="GPU-0", **owner),
        sample("gpuscope_owner_gpus_held", 1, **owner),
        sample("gpuscope_job_info", 1, slurm_job="17", user="ann", account="nlp", partition="gpu"),
    ]


def policy_thread(
    tmp_path: Path, samples: Sequence[Series], policy: str
) -> tuple[IdlePolicyThread, KeptAlerts]:
    (tmp_path / "idle.yml").write_text(policy)
    settings = Settings(idle_policy=str(tmp_path / "idle.yml"), data=str(tmp_path / "data"))
    kept = KeptAlerts()
    clock = HeldClock(END_MS / 1000)
    return IdlePolicyThread(settings, lambda: SampleEngine(samples), kept, clock), kept


def audit(tmp_path: Path) -> list[dict[str, object]]:
    path = tmp_path / "data/idle_policy_audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_real_command_runs_and_its_result_is_in_the_audit_log(tmp_path: Path) -> None:
    policy = f"command: [touch, '{tmp_path}/{{job}}-{{user}}']\ndry_run: false\n"
    thread, kept = policy_thread(tmp_path, idle_job(125), policy)
    thread.run_once()
    assert (tmp_path / "17-ann").exists()
    assert [alert_name(one) for one in kept.alerts] == ["IdleGpu", "IdleGpu"]
    rows = audit(tmp_path)
    assert [row["action"] for row in rows] == ["warned", "warned", "run", "run"]
    assert (rows[3]["result"], rows[3]["exit_code"]) == ("done", 0)
    thread.run_once()
    assert len(audit(tmp_path)) == 4, "once for each time it became idle"
    again, _ = policy_thread(tmp_path, idle_job(125), policy)
    again.run_once()
    assert len(audit(tmp_path)) == 4, "nor again after a restart"


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    thread, _ = policy_thread(tmp_path, idle_job(125), f"command: [touch, '{tmp_path}/ran']")
    thread.run_once()
    assert not (tmp_path / "ran").exists()
    assert audit(tmp_path)[-1]["action"] == "would_run"
    assert audit(tmp_path)[-1]["command"] == ["touch", f"{tmp_path}/ran"]


@pytest.mark.parametrize("command", ["['false']", "[no-such-command-here]"])
def test_a_command_that_fails_is_in_the_audit_log(tmp_path: Path, command: str) -> None:
    thread, _ = policy_thread(tmp_path, idle_job(125), f"command: {command}\ndry_run: false")
    thread.run_once()
    assert audit(tmp_path)[-1]["result"] == "failed"
    assert audit(tmp_path)[-1]["error"]


def alert_name(alert: Alert) -> str:
    return dict(alert.labels)["alertname"]


def digest(tmp_path: Path, port: int, now: float) -> tuple[DigestThread, HeldClock]:
    settings = Settings(
        digest=f"mailto://127.0.0.1:{port}?to=admins@example.org&from=gpuscope@example.org&tls=no",
        digest_every="day",
        gpu_rate="2",
        data=str(tmp_path),
    )
    clock = HeldClock(now)
    return DigestThread(settings, lambda: SampleEngine(FLEET), clock), clock


def test_a_mail_server_that_refuses_is_tried_again_later(tmp_path: Path) -> None:
    with running_smtp(refuse="MAIL") as broken:
        thread, clock = digest(tmp_path, broken.port, END_MS / 1000)
        thread.run_once()
        clock.seconds += 86_400
        assert not thread.run_once()
    with running_smtp() as sink:
        later, clock = digest(tmp_path, sink.port, clock.seconds)
        assert later.run_once(), "what was not sent is still due"


def test_a_digest_is_mailed_once_although_its_file_cannot_be_written(tmp_path: Path) -> None:
    with running_smtp() as sink:
        thread, clock = digest(tmp_path, sink.port, END_MS / 1000)
        thread.run_once()
        (tmp_path / "digest_sent.txt").unlink()
        (tmp_path / "digest_sent.txt").mkdir()  # nothing replaces a folder, as on a full disk
        clock.seconds += 86_400
        assert [thread.run_once() for _ in range(3)] == [True, False, False]
    assert len(sink.mails) == 1


def test_a_digest_is_mailed_once_with_text_and_page(tmp_path: Path) -> None:
    with running_smtp() as sink:
        thread, clock = digest(tmp_path, sink.port, END_MS / 1000)
        assert not thread.run_once(), "the first start waits for the next one"
        clock.seconds += 86_400
        assert thread.run_once()
        clock.seconds += 3600
        assert not thread.run_once()
    (kept,) = sink.mails
    assert (kept.sender, kept.recipients) == ("gpuscope@example.org", ["admins@example.org"])
    mail = message_from_bytes(kept.content, policy=default)
    assert mail["Subject"].startswith("GPU usage by user, day until 2026-")
    assert mail["To"] == "admins@example.org"
    assert isinstance(mail, EmailMessage)
    text, page = (str(part.get_content()) for part in mail.iter_parts() if isinstance(part, EmailMessage))
    assert "GPU-hours =" in text
    assert "cost: 2 per GPU-hour held" in text
    assert "<svg" in page


def test_a_digest_needs_a_mail_address(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--digest"):
        DigestThread(Settings(digest="ntfy://ntfy.sh/x", data=str(tmp_path)), lambda: SampleEngine(FLEET))


@pytest.mark.parametrize(
    ("every", "due", "start"),
    [
        ("day", "2026-11-18T06:00", "2026-11-17T00:00"),
        ("week", "2026-11-16T06:00", "2026-11-09T00:00"),
        ("month", "2026-11-01T06:00", "2026-10-01T00:00"),
    ],
)
def test_when_a_digest_is_due(every: str, due: str, start: str) -> None:
    now = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)
    found = last_due(now, every)
    assert found.strftime("%Y-%m-%dT%H:%M") == due
    assert digest_range(found, every)[0].strftime("%Y-%m-%dT%H:%M") == start
    assert last_due(datetime(2026, 11, 18, 5, 59, tzinfo=UTC), "day").day == 17
