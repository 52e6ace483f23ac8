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
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gpuscope.notify.idle_policy.idle_holders import MAX_HOLDERS, HolderKey, IdleHolder, IdleReading
from gpuscope.notify.idle_policy.policy_file import IdleExceptions, IdlePolicy, fill_command, placeholders
from gpuscope.prometheus_duration import duration_text
from gpuscope.rules.alert import Alert
from gpuscope.series import Labels

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
MAX_NODES_NAMED: Final = 4
_NAMES: Final = {
    "job": re.compile(r"[0-9]{1,19}(?:_[0-9]{1,9})?"),
    "pod": re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"),
    "namespace": re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
    "user": re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}|"),
    "account": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}|"),
    "partition": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,255}|"),
    "cluster": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}|"),
}
"""What may become a word of a command: nothing that looks like an option."""
_MAY_BE_UNKNOWN: Final = frozenset({"user", "account", "partition", "cluster"})


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


@dataclass(slots=True)
class _Episode:
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
class _HeldGpus:
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


@dataclass(frozen=True, slots=True)
class PolicyStep:
    actions: list[PolicyAction]
    alerts: list[Alert]


class PolicySteps:
    def __init__(self, policy: IdlePolicy, no_action: str = "") -> None:
        """`no_action` says why this server must not run a command; empty if it may."""
        self._policy = policy
        self._no_action = no_action
        self._episodes: dict[HolderKey, _Episode] = {}
        self._held: dict[HolderKey, _HeldGpus] = {}

    def step(self, reading: IdleReading, now: float, elapsed: float) -> PolicyStep:
        """`elapsed` are the seconds since the last step of this process, by the clock that never jumps; 0 for
        the first one."""
        found = PolicyStep([], [])
        watched = min(max(elapsed, 0.0), MAX_STEP_SECONDS)
        self._notice_replaced(reading, now, watched, found)
        self._remember_gpus(reading, now, watched)
        for holder in reading.holders:
            if not holder.idle_seconds:  # it may work or not
                continue
            episode = self._episodes.get(holder.key)
            if episode is not None and not 0 <= now - episode.seen_at <= GONE_SECONDS:
                self._end(holder.key, "gone", now, found)
            if holder.longest_idle >= self._policy.warn_after_seconds[0]:
                self._step_holder(holder, now, watched, found)
            elif holder.key in self._episodes:
                self._end(holder.key, "worked", now, found)
        for key, episode in list(self._episodes.items()):
            if not 0 <= now - episode.seen_at <= GONE_SECONDS:
                self._end(key, "gone", now, found)
        return found

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

    def _notice_replaced(self, reading: IdleReading, now: float, watched: float, found: PolicyStep) -> None:
        for holder in reading.holders:
            held = self._held.get(holder.key)
            if held is None:
                continue
            if held.is_another(holder):
                held.take_over(holder)
                if holder.key in self._episodes:
                    self._end(holder.key, "replaced", now, found)
            elif held.here_seconds is not None:
                held.here_seconds += watched
            if held.here_seconds is not None:
                holder.limit_idle(held.here_seconds)

    def _remember_gpus(self, reading: IdleReading, now: float, watched: float) -> None:
        for holder in reading.holders:
            held = self._held.setdefault(holder.key, _HeldGpus(now))
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

    def _end(self, key: HolderKey, kind: ActionKind, now: float, found: PolicyStep) -> None:
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
            found.actions.append(PolicyAction(kind, key, episode.user, "", idle, (), facts=facts))
        holder = IdleHolder(key, user=episode.user)
        found.alerts.extend(self._alert(holder, episode, stage, now, ended=True) for stage in episode.warned_at)

    def _step_holder(self, holder: IdleHolder, now: float, watched: float, found: PolicyStep) -> None:
        policy, since = self._policy, now - holder.longest_idle
        episode = self._episodes.get(holder.key)
        if episode is not None and episode.ends_after is not None and self._works(holder):
            self._end(holder.key, "worked", now, found)
            episode = None
        if episode is None or abs(episode.since - since) > SAME_EPISODE_SECONDS:
            episode = self._episodes[holder.key] = _Episode(since, holder.user)
            watched = 0.0
        episode.seen_at = now
        reason = exception_of(holder, policy.exceptions)
        if reason:
            if not episode.is_excepted:
                episode.is_excepted = True
                found.actions.append(
                    self._action("excepted", holder, policy.warn_after_seconds[0], reason=reason)
                )
            return
        due = sum(holder.longest_idle >= seconds for seconds in policy.warn_after_seconds)
        ends_after = self._ends_after(holder)
        is_stricter = ends_after is not None and ends_after < (episode.ends_after or math.inf)
        if is_stricter and episode.stage:
            # Its last GPU has become idle, or the policy was changed: its warnings do not say what happens now.
            found.alerts.extend(
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
            found.actions.append(self._action("warned", holder, idle_from, warning=due))
        elif episode.watched_seconds is None:
            episode.watched_seconds = None if episode.delivered_at is None else 0.0
        elif not self._unknown(holder):
            episode.watched_seconds += watched
        found.alerts.extend(self._alert(holder, episode, stage, now) for stage in episode.warned_at)
        self._act(holder, episode, now, found)

    def _ends_after(self, holder: IdleHolder) -> float | None:
        is_acting = self._words(holder) and not self._policy.is_dry_run
        if not is_acting or self._works(holder) or self._obstacle(holder):
            return None
        return self._policy.act_after_seconds

    def _words(self, holder: IdleHolder) -> tuple[str, ...]:
        return self._policy.command if holder.key.kind == "job" else self._policy.pod_command

    def _works(self, holder: IdleHolder) -> bool:
        """On some of its GPUs. Those of one idle time do not stop work in the same moment."""
        return holder.shortest_idle < self._policy.warn_after_seconds[0] - SAME_EPISODE_SECONDS

    def _act(self, holder: IdleHolder, episode: _Episode, now: float, found: PolicyStep) -> None:
        policy, words = self._policy, self._words(holder)
        is_waiting = episode.tries and not now - episode.tried_at >= RETRY_SECONDS
        is_done = episode.is_done and (policy.is_dry_run or not episode.is_dry)
        if is_done or is_waiting or not words or holder.shortest_idle < policy.act_after_seconds:
            return
        values = _values(holder)
        command = fill_command(words, values)
        if reason := self._why_not(holder, episode, now):
            if reason not in episode.withheld and len(episode.withheld) < MAX_REASONS:
                episode.withheld.add(reason)
                found.actions.append(
                    self._action("withheld", holder, policy.act_after_seconds, command=command, reason=reason)
                )
            return
        if episode.watched_seconds is None or episode.watched_seconds < policy.grace_seconds:
            return
        episode.is_done, episode.is_dry = True, policy.is_dry_run
        if not policy.is_dry_run:
            episode.tries, episode.tried_at = episode.tries + 1, now
        wrong = [name for name, value in values.items() if _NAMES[name].fullmatch(value) is None]
        if wrong:
            reason = f"its {wrong[0]} is not a name that is put into a command"
            found.actions.append(self._action("refused", holder, policy.act_after_seconds, reason=reason))
            return
        kind: ActionKind = "would_run" if policy.is_dry_run else "run"
        found.actions.append(self._action(kind, holder, policy.act_after_seconds, command=command))

    def _why_not(self, holder: IdleHolder, episode: _Episode, now: float) -> str:
        """Why the command does not run although all GPUs that are known are idle; empty if nothing is in its
        way but time."""
        if obstacle := self._obstacle(holder):
            return obstacle
        is_late = now - episode.warned_at[episode.stage] >= self._policy.grace_seconds
        if is_late and episode.delivered_at is None:
            return f"warning {episode.stage} has not been delivered; `gpuscope alerts` shows the channels"
        return ""

    def _obstacle(self, holder: IdleHolder) -> str:
        """Why no command may end the holder, whatever it was told; empty if one may."""
        if self._no_action:
            return self._no_action
        if unknown := self._unknown(holder):
            return unknown
        if holder.unverified:
            return (
                f"anybody with a write token may have sent the samples of {min(holder.unverified)}; "
                "scrape the node, or let it push with a token that is bound to it"
            )
        if len(holder.clusters) > 1 and "cluster" not in placeholders(self._words(holder)):
            return (
                f"{len(holder.clusters)} clusters report (label `cluster`), and the command does not say which "
                "one is meant; use {cluster} in it"
            )
        if holder.het_job:
            return f"it is a part of the heterogeneous job {holder.het_job}, whose other parts may work"
        if holder.other_user:
            return f"its user is not certain: {holder.user} or {holder.other_user}"
        values = _values(holder)
        if holder.key.kind == "job" and (missing := self._policy.exceptions.unknown_for(values)):
            return f"its {missing} is not known, so it may be one of the exceptions"
        if holder.key.kind == "pod" and self._policy.exceptions.labels and not holder.are_labels_known:
            return "its labels are not known, so it may be one of the exceptions; see --pod-labels of the agent"
        needed = _MAY_BE_UNKNOWN.intersection(placeholders(self._words(holder)))
        absent = min((name for name in needed if not values[name]), default="")
        return f"its {absent} is not known, and is a word of the command" if absent else ""

    def _unknown(self, holder: IdleHolder) -> str:
        """Which GPU of the holder is not known to be idle; empty if all are."""
        known = holder.idle_seconds.keys()
        if holder.strangers:
            nodes = ", ".join(sorted(holder.placement.nodes)[:MAX_NODES_NAMED])
            return (
                f"{min(holder.strangers)} reports it and is none of the nodes that Slurm has given it ({nodes})"
            )
        if unknown := holder.held - known:
            return f"its work on GPU {min(unknown)} is not known"
        if missing := self._held[holder.key].absent_seconds.keys() - known:
            return f"it had GPU {min(missing)} too, which is not reported as its own now"
        if holder.key.kind != "job":
            return _several_pods(holder)
        if holder.allocated is None:
            return "how many GPUs it has is not known: no agent that reads Slurm reports it"
        if holder.allocated > len(known):
            return f"Slurm has given it {holder.allocated:g} GPUs, and {len(known)} of them are reported"
        return _misplaced(holder)

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

    def _labels(self, key: HolderKey, episode: _Episode, stage: int) -> Labels:
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
        self, holder: IdleHolder, episode: _Episode, stage: int, now: float, *, ended: bool = False
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
            f"after {ends_after / 60:.0f} minutes `{self._words(holder)[0]}` ends it, at least {grace} after "
            "the last warning"
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
                for key, episode in self._episodes.items()
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
                for key, held in self._held.items()
            ],
        }

    def from_json(self, document: Mapping[str, Any]) -> None:
        """Skips malformed rows: their holders are warned again."""
        for row in document.get("episodes", ()):
            try:
                self._episodes[_key(row)] = _Episode(
                    since=float(row["since"]),
                    user=str(row["user"]),
                    ends_after=None if row["ends_after"] is None else float(row["ends_after"]),
                    warned_at={int(stage): float(at) for stage, at in row["warned_at"].items()},
                    delivered_at=None if row["delivered_at"] is None else float(row["delivered_at"]),
                    watched_seconds=None if row["watched"] is None else float(row["watched"]),
                    is_excepted=bool(row["excepted"]),
                    is_done=bool(row["done"]),
                    is_dry=bool(row["dry_run"]),
                    withheld={str(reason) for reason in row["withheld"]},
                    seen_at=float(row["seen_at"]),
                    tries=int(row["tries"]),
                    tried_at=float(row["tried_at"]),
                )
            except (KeyError, TypeError, ValueError, AttributeError):
                continue
        for row in document.get("holders", ()):
            try:
                gpus = {str(gpu): float(seconds) for gpu, seconds in row["gpus"].items()}
                self._held[_key(row)] = _HeldGpus(
                    float(row["seen_at"]),
                    gpus,
                    frozenset(map(str, row["last_gpus"])),
                    frozenset(map(str, row["hosts"])),
                    frozenset(map(str, row["uids"])),
                    None if row["here"] is None else float(row["here"]),
                )
            except (KeyError, TypeError, ValueError, AttributeError):
                continue


def _key_json(key: HolderKey) -> dict[str, str]:
    return {"kind": key.kind, "name": key.name, "namespace": key.namespace, "cluster": key.cluster}


def _key(row: Mapping[str, Any]) -> HolderKey:
    return HolderKey(str(row["kind"]), str(row["name"]), str(row["namespace"]), str(row.get("cluster", "")))


def _several_pods(holder: IdleHolder) -> str:
    """A pod that was deleted is reported for a while beside the one that has its name now."""
    if len(holder.hosts) > 1:
        return f"several nodes report a pod of this name: {', '.join(sorted(holder.hosts)[:MAX_NODES_NAMED])}"
    if len(holder.uids) > 1:
        return f"several pods have this name, with the UIDs {', '.join(sorted(holder.uids)[:MAX_NODES_NAMED])}"
    return ""


def _misplaced(holder: IdleHolder) -> str:
    """What does not fit to the nodes that Slurm has given the job; empty if all of it fits."""
    placement = holder.placement
    if not placement.nodes:
        return "on which nodes it runs is not known: no agent that reads Slurm reports it"
    if placement.contradiction:
        return f"{placement.contradiction}; give the targets of each cluster their own label `cluster`"
    if holder.self_named:
        return (
            f"only {min(holder.self_named)} itself says that it is one of the job's nodes; name targets (label "
            "`instance`) as Slurm names its nodes"
        )
    if silent := holder.silent_nodes:
        return f"its node {min(silent)} does not report it"
    for node, count in sorted(placement.gpus.items()):
        if holder.gpus_on(node) < count:
            return f"Slurm has given it {count} GPUs of {node}, and {holder.gpus_on(node)} of them are reported"
    return ""


def exception_of(holder: IdleHolder, exceptions: IdleExceptions) -> str:
    """Why the holder is left alone; empty if it is not."""
    if holder.key.namespace and holder.key.namespace in exceptions.namespaces:
        return f"namespace {holder.key.namespace}"
    for labels in holder.described_by:
        if reason := _exception_by(labels, exceptions):
            return reason
    return ""


def _exception_by(labels: Mapping[str, str], exceptions: IdleExceptions) -> str:
    if labels.get("user", "") in exceptions.users:
        return f"user {labels['user']}"
    if partitions := set(labels.get("partition", "").split(",")) & exceptions.partitions:
        return f"partition {min(partitions)}"
    for name, wanted in sorted(exceptions.labels):
        value = labels.get(name, "")
        if value and wanted in ("", value):
            return f"label {name.removeprefix('label_')}={value}"
    return ""


def _values(holder: IdleHolder) -> dict[str, str]:
    if holder.key.kind == "job":
        return {
            "job": holder.command_name,
            "user": holder.user,
            "account": holder.account,
            "partition": holder.partition,
            "cluster": holder.key.cluster,
        }
    return {"pod": holder.key.name, "namespace": holder.key.namespace, "cluster": holder.key.cluster}
