"""Every action of the idle policy as a line of JSON in a file of bounded size.

The file before it is kept as `.1`. A command is written before it runs, and its result after it.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Final

from gpuscope.episode_log import EpisodeLog
from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.idle_policy.policy_steps import PolicyAction
from gpuscope.rfc3339 import to_rfc3339
from gpuscope.whole_lines import append_whole_line

log = logging.getLogger("gpuscope.idle_policy")
FILE_NAME: Final = "idle_policy_audit.jsonl"
MAX_GPUS: Final = 64


class PolicyAudit:
    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._episode = EpisodeLog(log, f"audit log {path}", level=logging.ERROR)

    def write(self, action: PolicyAction, at: float, **more: Any) -> bool:
        """False if the file cannot be written: then no command may run."""
        entry = {
            "time": to_rfc3339(at, "seconds"),
            "action": action.kind,
            **({"warning": action.warning} if action.warning else {}),
            "kind": action.holder.kind,
            "namespace": action.holder.namespace,
            "name": action.holder.name,
            "user": action.user,
            "partition": action.partition,
            "idle_minutes": round(action.idle_seconds / 60, 1),
            "gpus": list(action.gpus[:MAX_GPUS]),
            **({"command": list(action.command)} if action.command else {}),
            **({"reason": action.reason} if action.reason else {}),
            **more,
        }
        line = json.dumps(entry, ensure_ascii=True).encode() + b"\n"
        try:
            self._rotate(len(line))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                append_whole_line(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._episode.failed(str(error))
            return False
        self._episode.succeeded()
        return True

    def _rotate(self, more: int) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size and size + more > self._max_bytes:
            LIMITS_REACHED.count("idle_audit_max_bytes")
            self._path.replace(self._path.with_name(self._path.name + ".1"))
