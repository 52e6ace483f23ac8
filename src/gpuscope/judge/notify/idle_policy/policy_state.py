"""What the idle policy knows of each holder, and how it is kept across restarts: one idle time with its
warnings, and every GPU that the holder has had. The holder of a row that cannot be read is warned again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuscope.judge.notify.idle_policy.idle_holders import HolderKey, IdleHolder

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
