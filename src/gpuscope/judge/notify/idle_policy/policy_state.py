"""What the idle policy knows of each holder, and how it is kept across restarts: one idle time with its
warnings, and every GPU that the holder has had. The holder of a row that cannot be read is warned again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.files import append_whole_line
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.idle_policy.idle_holders import HolderKey, IdleHolder

if TYPE_CHECKING:
    from gpuscope.judge.notify.idle_policy.policy_steps import DecisionFacts, PolicyAction

log = logging.getLogger("gpuscope.idle_policy")

T = TypeVar("T")


@dataclass(slots=True)
class IdleEpisode:
    """One idle time of a holder."""

    since: float
    user: str = ""
    ends_after: float | None = None
    """The idle seconds after which a command ends the holder, as its warnings say; None if they do not."""
    warned_at: dict[int, float] = field(default_factory=dict)
    """When each warning was given: 1 for the first."""
    delivered_at: float | None = None
    """When a channel accepted a message that has the last of them in full."""
    watched_seconds: float | None = None
    """How long the holder has been watched since that was known; None before."""
    is_excepted: bool = False
    is_done: bool = False
    """The command ran, or would have."""
    is_dry: bool = False
    """A dry run would have run it: it runs once the policy has `dry_run: false`."""
    withheld: set[str] = field(default_factory=set)
    """Why the command does not run: each reason is recorded once, so that one that comes and goes does not push
    other entries out of the audit log."""
    seen_at: float = 0.0
    tries: int = 0
    tried_at: float = 0.0

    @property
    def stage(self) -> int:
        """The last warning given; 0 before the first."""
        return max(self.warned_at, default=0)


@dataclass(slots=True)
class HeldGpus:
    """Every GPU that a holder has had."""

    seen_at: float
    absent_seconds: dict[str, float] = field(default_factory=dict)
    """By GPU: how long its node has reported that the holder has no process on it."""
    last_gpus: frozenset[str] = frozenset()
    """Those that it held when it was last reported."""
    hosts: frozenset[str] = frozenset()
    """Where it was then."""
    uids: frozenset[str] = frozenset()
    """Of a pod, as far as they are known."""
    here_seconds: float | None = None
    """How long it has been watched since it took over the name; None if no other holder had it before."""

    def is_another(self, holder: IdleHolder) -> bool:
        """A pod does not move: recreated, it may be on another node, or have another UID on the same one. A
        holder whose GPUs have all changed at once is taken for another one too."""
        if not holder.held or not self.last_gpus:
            return False
        if holder.key.kind == "pod" and holder.hosts != self.hosts:
            return True
        if holder.uids and self.uids and holder.uids != self.uids:
            return True
        return holder.held.isdisjoint(self.last_gpus)

    def take_over(self, holder: IdleHolder) -> None:
        """Jobs keep what they had: the node of such a GPU may only be silent. A pod has nothing elsewhere."""
        self.here_seconds, self.uids = 0.0, frozenset()
        if holder.key.kind == "pod":
            self.absent_seconds.clear()


def to_json(episodes: Mapping[HolderKey, IdleEpisode], holders: Mapping[HolderKey, HeldGpus]) -> dict[str, Any]:
    return {
        "episodes": [
            {
                **_key_json(key),
                "since": episode.since,
                "user": episode.user,
                "ends_after": episode.ends_after,
                "warned_at": episode.warned_at,
                "delivered_at": episode.delivered_at,
                "watched": episode.watched_seconds,
                "excepted": episode.is_excepted,
                "done": episode.is_done,
                "dry_run": episode.is_dry,
                "withheld": sorted(episode.withheld),
                "seen_at": episode.seen_at,
                "tries": episode.tries,
                "tried_at": episode.tried_at,
            }
            for key, episode in episodes.items()
        ],
        "holders": [
            {
                **_key_json(key),
                "seen_at": held.seen_at,
                "gpus": held.absent_seconds,
                "last_gpus": sorted(held.last_gpus),
                "hosts": sorted(held.hosts),
                "uids": sorted(held.uids),
                "here": held.here_seconds,
            }
            for key, held in holders.items()
        ],
    }


def read_episodes(document: Mapping[str, Any]) -> dict[HolderKey, IdleEpisode]:
    return _read_rows(document.get("episodes", ()), _read_episode)


def read_held_gpus(document: Mapping[str, Any]) -> dict[HolderKey, HeldGpus]:
    return _read_rows(document.get("holders", ()), _read_held)


def _read_rows(rows: Iterable[Any], read: Callable[[Mapping[str, Any]], T]) -> dict[HolderKey, T]:
    known: dict[HolderKey, T] = {}
    for row in rows:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            known[_key(row)] = read(row)
    return known


def _read_episode(row: Mapping[str, Any]) -> IdleEpisode:
    return IdleEpisode(
        since=float(row["since"]),
        user=str(row["user"]),
        ends_after=_number(row["ends_after"]),
        warned_at={int(stage): float(at) for stage, at in row["warned_at"].items()},
        delivered_at=_number(row["delivered_at"]),
        watched_seconds=_number(row["watched"]),
        is_excepted=bool(row["excepted"]),
        is_done=bool(row["done"]),
        is_dry=bool(row["dry_run"]),
        withheld={str(reason) for reason in row["withheld"]},
        seen_at=float(row["seen_at"]),
        tries=int(row["tries"]),
        tried_at=float(row["tried_at"]),
    )


def _read_held(row: Mapping[str, Any]) -> HeldGpus:
    return HeldGpus(
        float(row["seen_at"]),
        {str(gpu): float(seconds) for gpu, seconds in row["gpus"].items()},
        frozenset(map(str, row["last_gpus"])),
        frozenset(map(str, row["hosts"])),
        frozenset(map(str, row["uids"])),
        _number(row["here"]),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _key_json(key: HolderKey) -> dict[str, str]:
    return {"kind": key.kind, "name": key.name, "namespace": key.namespace, "cluster": key.cluster}


def _key(row: Mapping[str, Any]) -> HolderKey:
    return HolderKey(str(row["kind"]), str(row["name"]), str(row["namespace"]), str(row.get("cluster", "")))


# Every action of the idle policy as a line of JSON in a file of bounded size.
#
# The file before it is kept as `.1`. A command is written before it runs, and its result after it.

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
