"""The process that `test_kill_state` kills: changes every file of state at full speed.

One number is written to users and tokens, sessions, silences, notification log, history of notifications, audit
log, audit log of the idle policy and XID counts. After each a line `KIND NUMBER` says that it is acknowledged.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from gpuscope.agent.collect.error_state import ErrorState, ErrorStateFile, LogPosition, SavedErrorCount
from gpuscope.judge.notify.alert_matchers import AlertMatcher, parse_matcher
from gpuscope.judge.notify.idle_policy.idle_holders import HolderKey
from gpuscope.judge.notify.idle_policy.policy_state import FILE_NAME as POLICY_FILE
from gpuscope.judge.notify.idle_policy.policy_state import PolicyAudit
from gpuscope.judge.notify.idle_policy.policy_steps import PolicyAction
from gpuscope.judge.notify.notification_log import LogEntry, LogKey
from gpuscope.judge.notify.notify_state import FILE_NAME as NOTIFY_FILE
from gpuscope.judge.notify.notify_state import NotifyState
from gpuscope.judge.notify.silences import Silence
from gpuscope.serve.login.audit_log import AuditLog
from gpuscope.serve.login.user_file import LoginSessions, UserFile

XIDS_FILE: Final = "xids.json"
MAX_AUDIT_BYTES: Final = 1 << 30
KEPT_TOKENS: Final = 20
"""Older tokens are revoked, so that the file stays small and both kinds of change are made."""


def silence(number: int) -> Silence:
    matcher: AlertMatcher = parse_matcher(f"n={number}")
    return Silence((matcher,), 0.0, 4e9, "ann", "c" * (number % 2_000), id=f"silence-{number}")


def xid_state(number: int) -> ErrorState:
    count = SavedErrorCount(
        gpu="GPU-0", vendor="nvidia", code="48", count=number, last_at=float(number), unmatched={}
    )
    return ErrorState(boot_id="b", position=LogPosition(), uuid_at={}, shown=("GPU-0",), counts=(count,))


def action(number: int) -> PolicyAction:
    return PolicyAction("warned", HolderKey("job", str(number)), "ann", "p", 60.0, ("GPU-0",))


def main(folder: Path, first: int) -> None:
    users = UserFile(folder)
    sessions = LoginSessions(folder, users, 3600.0)
    audit, policy = AuditLog(folder, MAX_AUDIT_BYTES), PolicyAudit(folder / POLICY_FILE, MAX_AUDIT_BYTES)
    notify, xids = NotifyState(folder / NOTIFY_FILE), ErrorStateFile(folder / XIDS_FILE)
    for number in range(first, first + 1_000_000):
        print("token", number, users.add_token(f"t{number}"), flush=True)
        for token in users.tokens()[:-KEPT_TOKENS]:
            users.revoke_token(token.name)
            print("revoked", token.name.removeprefix("t"), flush=True)
        print("session", number, sessions.open_for("ann"), flush=True)
        notify.save_silence(silence(number))
        print("silence", number, flush=True)
        entry = LogEntry(float(number), 4e9, frozenset({"a"}), frozenset())
        notify.save_entry(LogKey("g", "r", "webhook", number % 50), entry)
        print("sent", number, flush=True)
        audit.append({"user": "ann", "number": number})
        print("audit", number, flush=True)
        assert policy.write(action(number), float(number))
        print("policy", number, flush=True)
        xids.save(xid_state(number))
        print("xids", number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
