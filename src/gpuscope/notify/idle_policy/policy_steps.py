"""Decides, once a minute, who is warned and what would run: holders in, actions and alerts out. No output here.

A holder is warned while one of its GPUs is idle for long enough; a command runs only when all of them are, once
for each time they became idle. A holder that the engine does not report has neither worked nor ended: its idle
time is kept for a while, so that an agent that was down repeats nothing. What was done is kept across restarts
(`to_json`, `from_json`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gpuscope.notify.idle_policy.idle_holders import HolderKey, IdleHolder
from gpuscope.notify.idle_policy.policy_file import IdleExceptions, IdlePolicy, fill_command
from gpuscope.rules.alert import Alert

ActionKind = Literal["warned", "would_run", "run", "excepted", "refused", "worked", "gone"]
ALERT_NAME: Final = "IdleGpu"
VALID_SECONDS: Final = 300.0
SAME_EPISODE_SECONDS: Final = 600.0
"""Two readings of one idle time differ by less: clocks, scrapes."""
GONE_SECONDS: Final = 900.0
"""A holder that is not reported for longer has ended, or nobody knows."""
MAX_TRIES: Final = 3
RETRY_SECONDS: Final = 600.0
MAX_GPUS_NAMED: Final = 8
_NAMES: Final = {
    "job": re.compile(r"[0-9]{1,19}(?:_[0-9]{1,9})?"),
    "pod": re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"),
    "namespace": re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
    "user": re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}|"),
    "account": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}|"),
    "partition": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,255}|"),
}
"""What may become a word of a command: nothing that looks like an option."""


@dataclass(frozen=True, slots=True)
class PolicyAction:
    kind: ActionKind
    holder: HolderKey
    user: str
    partition: str
    idle_seconds: float
    gpus: tuple[str, ...]
    command: tuple[str, ...] = ()
    reason: str = ""
    warning: int = 0
    """1 for the first warning; 0 for every other action."""


@dataclass(slots=True)
class _Episode:
    """One idle time of a holder."""

    since: float
    user: str = ""
    stage: int = 0
    """Warnings given."""
    is_excepted: bool = False
    is_done: bool = False
    """The command ran, or would have."""
    is_dry: bool = False
    """A dry run would have run it: it runs once the policy has `dry_run: false`."""
    seen_at: float = 0.0
    tries: int = 0
    tried_at: float = 0.0
    warned_at: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PolicyStep:
    actions: list[PolicyAction]
    alerts: list[Alert]


class PolicySteps:
    def __init__(self, policy: IdlePolicy) -> None:
        self._policy = policy
        self._episodes: dict[HolderKey, _Episode] = {}

    def step(self, holders: Sequence[IdleHolder], now: float) -> PolicyStep:
        found = PolicyStep([], [])
        for holder in holders:
            if holder.longest_idle >= self._policy.warn_after_seconds[0]:
                self._step_holder(holder, now, found)
            elif holder.key in self._episodes:
                self._end(holder.key, "worked", now, found)
        for key, episode in list(self._episodes.items()):
            if now - episode.seen_at > GONE_SECONDS:
                self._end(key, "gone", now, found)
        return found

    def use(self, policy: IdlePolicy) -> None:
        """From the next step on; what was done stays done."""
        self._policy = policy

    def _end(self, key: HolderKey, kind: ActionKind, now: float, found: PolicyStep) -> None:
        episode = self._episodes.pop(key)
        if episode.stage:
            found.actions.append(PolicyAction(kind, key, episode.user, "", episode.seen_at - episode.since, ()))
        for stage in range(episode.stage):
            holder = IdleHolder(key, user=episode.user)
            found.alerts.append(self._alert(holder, stage, episode, now, ended=True))

    def command_failed(self, key: HolderKey) -> None:
        """It is tried again later, up to three times."""
        episode = self._episodes.get(key)
        if episode is not None and episode.tries < MAX_TRIES:
            episode.is_done = False

    def _step_holder(self, holder: IdleHolder, now: float, found: PolicyStep) -> None:
        policy, since = self._policy, now - holder.longest_idle
        episode = self._episodes.get(holder.key)
        if episode is None or abs(episode.since - since) > SAME_EPISODE_SECONDS:
            episode = self._episodes[holder.key] = _Episode(since, holder.user)
        episode.seen_at = now
        reason = exception_of(holder, policy.exceptions)
        if reason:
            if not episode.is_excepted:
                episode.is_excepted = True
                found.actions.append(_action("excepted", holder, policy.warn_after_seconds[0], reason=reason))
            return
        for stage, seconds in enumerate(policy.warn_after_seconds):
            if holder.longest_idle >= seconds:
                if episode.stage <= stage:
                    episode.stage = stage + 1
                    episode.warned_at.append(now)
                    found.actions.append(_action("warned", holder, seconds, warning=stage + 1))
                found.alerts.append(self._alert(holder, stage, episode, now))
        self._act(holder, episode, now, found)

    def _act(self, holder: IdleHolder, episode: _Episode, now: float, found: PolicyStep) -> None:
        policy = self._policy
        words = policy.command if holder.key.kind == "job" else policy.pod_command
        is_waiting = episode.tries and now - episode.tried_at < RETRY_SECONDS
        is_done = episode.is_done and (policy.is_dry_run or not episode.is_dry)
        if is_done or is_waiting or not words or holder.all_idle < policy.act_after_seconds:
            return
        episode.is_done, episode.is_dry = True, policy.is_dry_run
        if not policy.is_dry_run:
            episode.tries, episode.tried_at = episode.tries + 1, now
        values = _values(holder)
        wrong = [name for name, value in values.items() if _NAMES[name].fullmatch(value) is None]
        if wrong:
            reason = f"its {wrong[0]} is not a name that is put into a command"
            found.actions.append(_action("refused", holder, policy.act_after_seconds, reason=reason))
            return
        kind: ActionKind = "would_run" if policy.is_dry_run else "run"
        found.actions.append(
            _action(kind, holder, policy.act_after_seconds, command=fill_command(words, values))
        )

    def _alert(
        self, holder: IdleHolder, stage: int, episode: _Episode, now: float, *, ended: bool = False
    ) -> Alert:
        key, policy = holder.key, self._policy
        labels = {"alertname": ALERT_NAME, "severity": "warning", "warning": str(stage + 1)}
        labels |= (
            {"slurm_job": key.name} if key.kind == "job" else {"namespace": key.namespace, "pod": key.name}
        )
        # The user as it was first known: a label that changes would be another alert.
        labels |= {"user": episode.user} if episode.user else {}
        idle = holder.longest_idle / 60
        gpus = holder.idle_gpus(policy.warn_after_seconds[0])
        listed = ", ".join(gpus[:MAX_GPUS_NAMED]) + (" …" if len(gpus) > MAX_GPUS_NAMED else "")
        count = f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''}"
        words = policy.command if key.kind == "job" else policy.pod_command
        act = f"{policy.act_after_seconds / 60:.0f} minutes"
        then = f"after {act} `{words[0]}` ends it" if words and not policy.is_dry_run else "please end it"
        owner = holder.user or key.text
        annotations = {
            "summary": f"{key.text} has left {count} idle for {idle:.0f} minutes",
            "description": f"Idle GPUs: {listed}. If it does not need them, {then}.",
            "owner": owner,
            "next_step": f"scancel {key.name}"
            if key.kind == "job"
            else f"kubectl -n {key.namespace} delete pod {key.name}",
        }
        return Alert(
            labels=tuple(sorted(labels.items())),
            annotations=tuple(sorted((name, text) for name, text in annotations.items() if text)),
            starts_at=episode.warned_at[stage] if stage < len(episode.warned_at) else now,
            ends_at=now if ended else None,
            valid_until=now + VALID_SECONDS,
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": key.kind,
                "name": key.name,
                "namespace": key.namespace,
                "since": one.since,
                "user": one.user,
                "stage": one.stage,
                "excepted": one.is_excepted,
                "done": one.is_done,
                "dry_run": one.is_dry,
                "seen_at": one.seen_at,
                "tries": one.tries,
                "tried_at": one.tried_at,
                "warned_at": one.warned_at,
            }
            for key, one in self._episodes.items()
        ]

    def from_json(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """What is not as it was written is left out."""
        for row in rows:
            try:
                key = HolderKey(str(row["kind"]), str(row["name"]), str(row["namespace"]))
                self._episodes[key] = _Episode(
                    since=float(row["since"]),
                    user=str(row["user"]),
                    stage=int(row["stage"]),
                    is_excepted=bool(row["excepted"]),
                    is_done=bool(row["done"]),
                    is_dry=bool(row.get("dry_run", False)),
                    seen_at=float(row.get("seen_at", row["since"])),
                    tries=int(row["tries"]),
                    tried_at=float(row["tried_at"]),
                    warned_at=[float(one) for one in row["warned_at"]],
                )
            except (KeyError, TypeError, ValueError):
                continue


def exception_of(holder: IdleHolder, exceptions: IdleExceptions) -> str:
    """Why the holder is left alone; empty if it is not."""
    if holder.user in exceptions.users:
        return f"user {holder.user}"
    partitions = set(holder.partition.split(",")) & exceptions.partitions
    if partitions:
        return f"partition {min(partitions)}"
    if holder.key.namespace and holder.key.namespace in exceptions.namespaces:
        return f"namespace {holder.key.namespace}"
    for name, wanted in sorted(exceptions.labels):
        value = holder.labels.get(name, "")
        if value and wanted in ("", value):
            return f"label {name.removeprefix('label_')}={value}"
    return ""


def _values(holder: IdleHolder) -> dict[str, str]:
    if holder.key.kind == "job":
        return {
            "job": holder.key.name,
            "user": holder.user,
            "account": holder.account,
            "partition": holder.partition,
        }
    return {"pod": holder.key.name, "namespace": holder.key.namespace}


def _action(
    kind: ActionKind,
    holder: IdleHolder,
    idle_from: float,
    *,
    command: tuple[str, ...] = (),
    reason: str = "",
    warning: int = 0,
) -> PolicyAction:
    return PolicyAction(
        kind,
        holder.key,
        holder.user,
        holder.partition,
        holder.longest_idle,
        tuple(holder.idle_gpus(idle_from)),
        command,
        reason,
        warning,
    )
