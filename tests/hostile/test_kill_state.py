"""kill −9 of a process that writes its files of state: each reads back, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.collect.error_state import ErrorStateFile
from gpuscope.judge.notify.idle_policy.policy_state import FILE_NAME as POLICY_FILE
from gpuscope.judge.notify.notify_state import FILE_NAME as NOTIFY_FILE
from gpuscope.judge.notify.notify_state import NotifyState
from gpuscope.serve.login.audit_log import AuditLog
from gpuscope.serve.login.user_file import LoginSessions, UserFile
from tests.hostile.killed_writer import MAX_AUDIT_BYTES, XIDS_FILE, silence

KILLS = 3
MANY_KILLS = 60
MIN_LINES, MAX_LINES = 30, 150
"""Acknowledged changes before a kill; with the smaller number each file was written."""
PASSWORD = "correct horse battery"
Acknowledged = dict[str, dict[int, str]]
"""By kind: the secret, or an empty text, by number."""


def run_and_kill(folder: Path, first: int, lines_before: int, acknowledged: Acknowledged) -> int:
    """Kills it some time after it has acknowledged so many changes. Returns the highest number of them."""
    command = [sys.executable, "-m", "tests.hostile.killed_writer", str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        lines = b"".join(process.stdout.readline() for _ in range(lines_before))
        assert process.poll() is None, "it ended by itself"
        process.kill()
        lines += process.stdout.read()
    last = first
    # A line that was cut off was not acknowledged.
    for line in lines.decode().split("\n")[:-1]:
        kind, number, *secret = line.split(" ")
        last = max(last, int(number))
        if kind == "revoked":
            acknowledged["token"].pop(int(number), None)
        acknowledged[kind][int(number)] = "".join(secret)
    return last


def audit_numbers(folder: Path) -> set[int]:
    return {int(str(entry["number"])) for entry in AuditLog(folder, MAX_AUDIT_BYTES).newest(10**9)}  # type: ignore[typeddict-item]


def policy_names(folder: Path) -> Iterator[int]:
    for line in (folder / POLICY_FILE).read_bytes().splitlines():
        try:
            yield int(json.loads(line)["name"])
        except ValueError:
            continue  # the line that the kill cut


def check(folder: Path, acknowledged: Acknowledged) -> None:
    users = UserFile(folder)
    assert users.check("ann", PASSWORD)
    known = {token.name for token in users.tokens()}
    # The newest revocation may have been stored without its line.
    assert len({f"t{number}" for number in acknowledged["token"]} - known) <= 1
    assert not {f"t{number}" for number in acknowledged["revoked"]} & known
    newest = max(acknowledged["token"])
    assert users.token(acknowledged["token"][newest]) is not None
    session = acknowledged["session"][max(acknowledged["session"], default=0)]
    assert LoginSessions(folder, users, 3600.0).user_of(session) == "ann"
    state = NotifyState(folder / NOTIFY_FILE)
    stored = {one.id: one for one in state.silences()}
    assert all(stored[f"silence-{number}"] == silence(number) for number in acknowledged["silence"])
    sent = {int(entry.sent_at) for _, entry in state.entries()}
    assert set(sorted(acknowledged["sent"])[-40:]) <= sent
    state.close()
    assert set(acknowledged["policy"]) <= set(policy_names(folder))
    xids = ErrorStateFile(folder / XIDS_FILE).load()
    assert xids is not None
    assert xids.counts[0].count >= max(acknowledged["xids"])
    assert set(sorted(acknowledged["audit"])[-500:]) <= audit_numbers(folder)


def kill_many_times(folder: Path, kills: int, seed: int) -> None:
    UserFile(folder, rounds=4).add("ann", PASSWORD)
    moments, acknowledged, first = random.Random(seed), defaultdict[str, dict[int, str]](dict), 0
    for _ in range(kills):
        first = run_and_kill(folder, first, moments.randint(MIN_LINES, MAX_LINES), acknowledged) + 2
        assert {"token", "session", "silence", "sent", "audit", "policy", "xids"} <= acknowledged.keys()
        check(folder, acknowledged)
    left_over = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert len(left_over) <= kills, "a kill leaves at most one temporary file"


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    kill_many_times(tmp_path / "data", KILLS, seed=1)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_many_kills(tmp_path: Path) -> None:
    kill_many_times(tmp_path / "data", MANY_KILLS, seed=time.time_ns() ^ os.getpid())
