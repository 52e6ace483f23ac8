"""Every action of the idle policy as a line of JSON in a file of bounded size.

The file before it is kept as `.1`. A command is written before it runs, and its result after it.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Final

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.files import append_whole_line
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.idle_policy.policy_steps import DecisionFacts, PolicyAction

log = logging.getLogger("gpuscope.idle_policy")
FILE_NAME: Final = "idle_policy_audit.jsonl"
MAX_GPUS: Final = 64
"""Also of nodes; their numbers are in the entry too."""
MAX_CHARACTERS: Final = 1000
MAX_NAME_CHARACTERS: Final = 256
"""In a list. Names come from outside, and a reason has some of them."""


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
            **({"cluster": action.holder.cluster} if action.holder.cluster else {}),
            "user": action.user,
            "partition": action.partition,
            "idle_minutes": round(action.idle_seconds / 60, 1),
            "gpus": list(action.gpus[:MAX_GPUS]),
            **({"command": list(action.command)} if action.command else {}),
            **({"reason": action.reason} if action.reason else {}),
            **(_facts_json(action.facts) if action.facts is not None else {}),
            **more,
        }
        entry = {key: _cut(value) for key, value in entry.items()}
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


def _facts_json(facts: DecisionFacts) -> dict[str, Any]:
    """The GPUs that are not idle, or not known, come first: they are the ones that protect a holder."""
    idle = sorted(facts.idle_seconds.items(), key=lambda gpu: (gpu[1] is not None, gpu[1] or 0.0, gpu[0]))
    instances = sorted({gpu.rpartition("/")[0] for gpu in facts.idle_seconds})
    return {
        "idle_minutes_by_gpu": {gpu: seconds and round(seconds / 60, 1) for gpu, seconds in idle[:MAX_GPUS]},
        "gpu_count": len(idle),
        "instances": instances[:MAX_GPUS],
        "instance_count": len(instances),
        **({"uids": sorted(facts.uids)[:MAX_GPUS]} if facts.uids else {}),
        **({"slurm_nodes": sorted(facts.slurm_nodes)[:MAX_GPUS]} if facts.slurm_nodes else {}),
        **({"slurm_gpus": facts.slurm_gpus} if facts.slurm_gpus is not None else {}),
        "warned_at": {str(number): to_rfc3339(at, "seconds") for number, at in facts.warned_at.items()},
        "delivered_at": None if facts.delivered_at is None else to_rfc3339(facts.delivered_at, "seconds"),
        "watched_minutes": None if facts.watched_seconds is None else round(facts.watched_seconds / 60, 1),
    }


def _cut(value: Any, most: int = MAX_CHARACTERS) -> Any:
    """With shorter texts, also within lists and mappings."""
    if isinstance(value, str):
        return value if len(value) <= most else value[: most - 1] + "…"
    if isinstance(value, list):
        return [_cut(name, MAX_NAME_CHARACTERS) for name in value]
    if isinstance(value, dict):
        return {_cut(name, MAX_NAME_CHARACTERS): inner for name, inner in value.items()}
    return value
