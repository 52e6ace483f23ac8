"""A log file on a full disk has whole lines only: audit log, idle policy's audit log, query log."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.history.promql import Statistics
from gpuscope.judge.notify.idle_policy.idle_holders import HolderKey
from gpuscope.judge.notify.idle_policy.policy_state import PolicyAudit
from gpuscope.judge.notify.idle_policy.policy_steps import PolicyAction
from gpuscope.serve.api.query_threads import QueryLog
from gpuscope.serve.http.messages import Request
from gpuscope.serve.login.audit_log import AuditLog

ROOM_BYTES = 5_000
MAX_BYTES = 1 << 20
Writer = Callable[[str], object]


def _audit(path: Path) -> Writer:
    log = AuditLog(path.parent, MAX_BYTES)
    return lambda text: log.append({"detail": text})


def _policy(path: Path) -> Writer:
    log = PolicyAudit(path, MAX_BYTES)
    action = PolicyAction("warned", HolderKey("job", "17"), "ann", "", 60.0, ())
    return lambda text: log.write(action, 0.0, detail=text)


def _queries(path: Path) -> Writer:
    log = QueryLog(MAX_BYTES)
    log.open(path)

    def write(text: str) -> None:
        with log.logged(Request("GET", "/api/v1/query"), text, 0, 0, 0, Statistics()):
            pass

    return write


@contextmanager
def _full_at(size: int) -> Iterator[None]:
    """As on a full disk, a write takes what has room, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("make", [_audit, _policy, _queries])
def test_a_full_disk_cuts_no_line(make: Callable[[Path], Writer], tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    write = make(path)
    with _full_at(ROOM_BYTES):
        for number in range(40):
            write(f"{number} {'x' * 301}")
    cut = path.read_bytes()
    assert ROOM_BYTES - 1_000 < len(cut) < ROOM_BYTES
    assert cut.endswith(b"}\n")
    write("after")
    lines = path.read_text().splitlines()
    assert 1 < len(lines) < 40
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert "after" in lines[-1]
