"""Decides, once a minute, who is warned and what would run: holders in, actions and alerts out. No output here.

A holder is warned while one of its GPUs is idle for long enough. A command runs once for each time all of its
GPUs became idle, and only if each of them is known, verified and idle, and a warning that says so was delivered
`grace` before. A GPU that the holder had stays one of its GPUs until its node reports, for a while, that the
holder has left it. Time counts only while the holder is watched, by the clock that never jumps. For a holder
that has taken over the name of another one, as a pod that was recreated, everything begins anew. What was
done is kept across restarts (`to_json`, `from_json`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gpuscope.base.time_text import duration_text
from gpuscope.judge.notify.idle_policy.idle_holders import MAX_HOLDERS, HolderKey, IdleHolder, IdleReading
from gpuscope.judge.notify.idle_policy.policy_file import (
    IdlePolicy,
    command_values,
    command_words,
    exception_of,
    fill_command,
    obstacle,
    unknown_gpu,
    wrong_name,
)
from gpuscope.judge.notify.idle_policy.policy_state import (
    HeldGpus,
    IdleEpisode,
    read_episodes,
    read_held_gpus,
    to_json,
)
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.model.series import Labels

ActionKind = Literal[
    "warned", "would_run", "run", "withheld", "excepted", "refused", "worked", "replaced", "gone"
]
ALERT_NAME: Final = "IdleGpu"
VALID_SECONDS: Final = 300.0
SAME_EPISODE_SECONDS: Final = 600.0
"""Two readings of one idle time differ by less: clocks, scrapes."""
GONE_SECONDS: Final = 900.0
"""A holder that is not reported for longer has ended, or nobody knows. So long must a node report that a holder
has no process on a GPU before the GPU is not the holder's any more: programs are restarted."""
MAX_STEP_SECONDS: Final = 180.0
"""Of the time between two steps, at most so much counts as watched."""
FORGET_SECONDS: Final = 7 * 86400.0
"""GPUs of a holder that nobody reports any more are remembered so long."""
MAX_TRIES: Final = 3
MAX_REASONS: Final = 20
RETRY_SECONDS: Final = 600.0
MAX_GPUS_NAMED: Final = 8
MAX_GPUS_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """What was known when an action was decided."""

    idle_seconds: Mapping[str, float | None]
    """By GPU that the holder has or had: None if its work is not known."""
    uids: frozenset[str] = frozenset()
    """Of a pod."""
    slurm_nodes: frozenset[str] = frozenset()
    slurm_gpus: float | None = None
    warned_at: Mapping[int, float] = field(default_factory=dict)
    """By warning that still counts."""
    delivered_at: float | None = None
    """The last one of them."""
    watched_seconds: float | None = None
    """Since then, while every GPU was known."""


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
    facts: DecisionFacts | None = None
    """None only for what nobody decided on numbers."""


@dataclass(frozen=True, slots=True)
class PolicyStep:
    actions: list[PolicyAction]
    alerts: list[Alert]


class PolicySteps:
    def __init__(self, policy: IdlePolicy, no_action: str = "") -> None:
        """`no_action` says why this server must not run a command; empty if it may."""
        self._policy = policy
        self._no_action = no_action
        self._episodes: dict[HolderKey, IdleEpisode] = {}
        self._held: dict[HolderKey, HeldGpus] = {}

    def step(self, reading: IdleReading, now: float, elapsed: float) -> PolicyStep:
        """`elapsed` are the seconds since the last step of this process, by the clock that never jumps; 0 for
        the first one."""
        result = PolicyStep([], [])
        watched = min(max(elapsed, 0.0), MAX_STEP_SECONDS)
        self._notice_replaced(reading, now, watched, result)
        self._remember_gpus(reading, now, watched)
        for holder in reading.holders:
            if not holder.idle_seconds:  # it may work or not
                continue
            episode = self._episodes.get(holder.key)
            if episode is not None and not 0 <= now - episode.seen_at <= GONE_SECONDS:
                self._end(holder.key, "gone", now, result)
            if holder.longest_idle >= self._policy.warn_after_seconds[0]:
                self._step_holder(holder, now, watched, result)
            elif holder.key in self._episodes:
                self._end(holder.key, "worked", now, result)
        for key, episode in list(self._episodes.items()):
            if not 0 <= now - episode.seen_at <= GONE_SECONDS:
                self._end(key, "gone", now, result)
        return result

    @property
    def policy(self) -> IdlePolicy:
        return self._policy

    def use(self, policy: IdlePolicy) -> None:
        """From the next step on; what was done stays done."""
        self._policy = policy

    def undelivered(self) -> list[tuple[HolderKey, Labels, float]]:
        """The warnings whose delivery is not known: their alert's labels, and when they were given."""
        return [
            (key, self._labels(key, episode, episode.stage), episode.warned_at[episode.stage])
            for key, episode in self._episodes.items()
            if episode.stage and episode.delivered_at is None
        ]

    def delivered(self, key: HolderKey, at: float) -> None:
        """A channel has accepted a message that has the last warning of this holder in full."""
        self._episodes[key].delivered_at = at

    def command_failed(self, key: HolderKey) -> None:
        """It is tried again later, up to three times."""
        episode = self._episodes.get(key)
        if episode is not None and episode.tries < MAX_TRIES:
            episode.is_done = False

    def _notice_replaced(self, reading: IdleReading, now: float, watched: float, result: PolicyStep) -> None:
        for holder in reading.holders:
            held = self._held.get(holder.key)
            if held is None:
                continue
            if held.is_another(holder):
                held.take_over(holder)
                if holder.key in self._episodes:
                    self._end(holder.key, "replaced", now, result)
            elif held.here_seconds is not None:
                held.here_seconds += watched
            if held.here_seconds is not None:
                holder.limit_idle(held.here_seconds)

    def _remember_gpus(self, reading: IdleReading, now: float, watched: float) -> None:
        for holder in reading.holders:
            held = self._held.setdefault(holder.key, HeldGpus(now))
            held.seen_at = now
            for gpu in held.absent_seconds.keys() - holder.held:
                if (holder.key.kind, gpu) in reading.accounted:
                    held.absent_seconds[gpu] += watched
                    if held.absent_seconds[gpu] >= GONE_SECONDS:
                        del held.absent_seconds[gpu]
            held.absent_seconds.update(dict.fromkeys(holder.held, 0.0))
            if holder.held:
                held.last_gpus, held.hosts = frozenset(holder.held), holder.hosts
            held.uids = frozenset(holder.uids) or held.uids
        reported = {holder.key for holder in reading.holders}
        for key, held in list(self._held.items()):
            if key in reported:
                continue
            gpus = held.absent_seconds
            for gpu in gpus:
                gpus[gpu] += watched if (key.kind, gpu) in reading.accounted else 0.0
            is_gone = all(seconds >= GONE_SECONDS for seconds in gpus.values())
            if is_gone or now - held.seen_at > FORGET_SECONDS or len(self._held) > MAX_HOLDERS:
                del self._held[key]

    def _end(self, key: HolderKey, kind: ActionKind, now: float, result: PolicyStep) -> None:
        episode = self._episodes.pop(key)
        if episode.stage:
            held = self._held.get(key)
            facts = DecisionFacts(
                dict.fromkeys(held.absent_seconds if held else ()),
                frozenset(held.uids if held else ()),
                warned_at=dict(episode.warned_at),
                delivered_at=episode.delivered_at,
                watched_seconds=episode.watched_seconds,
            )
            idle = episode.seen_at - episode.since
            result.actions.append(PolicyAction(kind, key, episode.user, "", idle, (), facts=facts))
        holder = IdleHolder(key, user=episode.user)
        result.alerts.extend(
            self._alert(holder, episode, stage, now, ended=True) for stage in episode.warned_at
        )

    def _step_holder(self, holder: IdleHolder, now: float, watched: float, result: PolicyStep) -> None:
        policy, since = self._policy, now - holder.longest_idle
        episode = self._episodes.get(holder.key)
        if episode is not None and episode.ends_after is not None and self._works(holder):
            self._end(holder.key, "worked", now, result)
            episode = None
        if episode is None or abs(episode.since - since) > SAME_EPISODE_SECONDS:
            episode = self._episodes[holder.key] = IdleEpisode(since, holder.user)
            watched = 0.0
        episode.seen_at = now
        reason = exception_of(holder, policy.exceptions)
        if reason:
            if not episode.is_excepted:
                episode.is_excepted = True
                result.actions.append(
                    self._action("excepted", holder, policy.warn_after_seconds[0], reason=reason)
                )
            return
        due = sum(holder.longest_idle >= seconds for seconds in policy.warn_after_seconds)
        ends_after = self._ends_after(holder)
        is_stricter = ends_after is not None and ends_after < (episode.ends_after or math.inf)
        if is_stricter and episode.stage:
            # Its last GPU has become idle, or the policy was changed: its warnings do not say what happens now.
            result.alerts.extend(
                self._alert(holder, episode, stage, now, ended=True) for stage in episode.warned_at
            )
            episode.warned_at.clear()
        if not episode.stage:
            episode.ends_after = ends_after
        if due > episode.stage:
            # Of several that are due, as at the first start, the last one says everything.
            episode.warned_at[due] = now
            episode.delivered_at = episode.watched_seconds = None
            idle_from = policy.warn_after_seconds[due - 1]
            result.actions.append(self._action("warned", holder, idle_from, warning=due))
        elif episode.watched_seconds is None:
            episode.watched_seconds = None if episode.delivered_at is None else 0.0
        elif not unknown_gpu(holder, self._held[holder.key].absent_seconds):
            episode.watched_seconds += watched
        result.alerts.extend(self._alert(holder, episode, stage, now) for stage in episode.warned_at)
        self._act(holder, episode, now, result)

    def _ends_after(self, holder: IdleHolder) -> float | None:
        is_acting = command_words(holder, self._policy) and not self._policy.is_dry_run
        if not is_acting or self._works(holder) or self._obstacle(holder):
            return None
        return self._policy.act_after_seconds

    def _works(self, holder: IdleHolder) -> bool:
        """On some of its GPUs. Those of one idle time do not stop work in the same moment."""
        return holder.shortest_idle < self._policy.warn_after_seconds[0] - SAME_EPISODE_SECONDS

    def _act(self, holder: IdleHolder, episode: IdleEpisode, now: float, result: PolicyStep) -> None:
        policy, words = self._policy, command_words(holder, self._policy)
        is_waiting = episode.tries and not now - episode.tried_at >= RETRY_SECONDS
        is_done = episode.is_done and (policy.is_dry_run or not episode.is_dry)
        if is_done or is_waiting or not words or holder.shortest_idle < policy.act_after_seconds:
            return
        values = command_values(holder)
        command = fill_command(words, values)
        if reason := self._why_not(holder, episode, now):
            if reason not in episode.withheld and len(episode.withheld) < MAX_REASONS:
                episode.withheld.add(reason)
                result.actions.append(
                    self._action("withheld", holder, policy.act_after_seconds, command=command, reason=reason)
                )
            return
        if episode.watched_seconds is None or episode.watched_seconds < policy.grace_seconds:
            return
        episode.is_done, episode.is_dry = True, policy.is_dry_run
        if not policy.is_dry_run:
            episode.tries, episode.tried_at = episode.tries + 1, now
        if wrong := wrong_name(values):
            reason = f"its {wrong} is not a name that is put into a command"
            result.actions.append(self._action("refused", holder, policy.act_after_seconds, reason=reason))
            return
        kind: ActionKind = "would_run" if policy.is_dry_run else "run"
        result.actions.append(self._action(kind, holder, policy.act_after_seconds, command=command))

    def _why_not(self, holder: IdleHolder, episode: IdleEpisode, now: float) -> str:
        """Why the command does not run although all GPUs that are known are idle; empty if nothing is in its
        way but time."""
        if obstacle := self._obstacle(holder):
            return obstacle
        is_late = now - episode.warned_at[episode.stage] >= self._policy.grace_seconds
        if is_late and episode.delivered_at is None:
            return f"warning {episode.stage} has not been delivered; `gpuscope alerts` shows the channels"
        return ""

    def _obstacle(self, holder: IdleHolder) -> str:
        return self._no_action or obstacle(holder, self._held[holder.key].absent_seconds, self._policy)

    def _action(
        self,
        kind: ActionKind,
        holder: IdleHolder,
        idle_from: float,
        *,
        command: tuple[str, ...] = (),
        reason: str = "",
        warning: int = 0,
    ) -> PolicyAction:
        episode, held = self._episodes[holder.key], self._held[holder.key]
        gpus: dict[str, float | None] = dict.fromkeys([*holder.held, *held.absent_seconds])
        facts = DecisionFacts(
            gpus | holder.idle_seconds,
            frozenset(holder.uids),
            holder.placement.nodes,
            holder.allocated,
            dict(episode.warned_at),
            episode.delivered_at,
            episode.watched_seconds,
        )
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
            facts,
        )

    def _labels(self, key: HolderKey, episode: IdleEpisode, stage: int) -> Labels:
        labels = {"alertname": ALERT_NAME, "severity": "warning", "warning": str(stage)}
        labels |= (
            {"slurm_job": key.name} if key.kind == "job" else {"namespace": key.namespace, "pod": key.name}
        )
        labels |= {"cluster": key.cluster} if key.cluster else {}
        # The user as it was first known: a label that changes would be another alert.
        labels |= {"user": episode.user} if episode.user else {}
        if episode.ends_after is not None:  # a label, so that a stricter policy is a new message at once
            labels["ends_after"] = duration_text(round(1000 * episode.ends_after))
        return tuple(sorted(labels.items()))

    def _alert(
        self, holder: IdleHolder, episode: IdleEpisode, stage: int, now: float, *, ended: bool = False
    ) -> Alert:
        key, policy = holder.key, self._policy
        idle = holder.longest_idle / 60
        gpus = holder.idle_gpus(policy.warn_after_seconds[0])
        named = ", ".join(gpus[:MAX_GPUS_NAMED])
        # A message cuts a long text, and its end says what happens.
        is_all = len(gpus) <= MAX_GPUS_NAMED and len(named) <= MAX_GPUS_CHARACTERS
        listed = named[:MAX_GPUS_CHARACTERS] + ("" if is_all else " …")
        count = f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''}"
        ends_after = self._ends_after(holder)
        grace = f"{policy.grace_seconds / 60:.0f} minutes"
        then = (
            f"after {ends_after / 60:.0f} minutes `{command_words(holder, policy)[0]}` ends it, "
            f"at least {grace} after the last warning"
            if ends_after is not None
            else "please end it"
        )
        owner = holder.user or key.text
        annotations = {
            "summary": f"{key.text} has left {count} idle for {idle:.0f} minutes",
            "description": f"Idle GPUs: {listed}. If it does not need them, {then}.",
            "owner": owner,
            "next_step": f"scancel {holder.command_name}"
            if key.kind == "job"
            else f"kubectl -n {key.namespace} delete pod {key.name}",
        }
        return Alert(
            labels=self._labels(key, episode, stage),
            annotations=tuple(sorted((name, text) for name, text in annotations.items() if text)),
            starts_at=episode.warned_at[stage],
            ends_at=now if ended else None,
            valid_until=now + VALID_SECONDS,
        )

    def to_json(self) -> dict[str, Any]:
        return to_json(self._episodes, self._held)

    def from_json(self, document: Mapping[str, Any]) -> None:
        self._episodes |= read_episodes(document)
        self._held |= read_held_gpus(document)
