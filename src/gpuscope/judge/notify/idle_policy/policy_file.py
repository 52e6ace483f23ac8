"""The file of --idle-policy: when holders of idle GPUs are warned, what runs then, and who is left alone.

Strict YAML: an unknown key or a wrong value is refused with its line. Nothing runs unless `dry_run: false`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_positive_duration, parse_switch, with_unit
from gpuscope.base.yaml_file import YamlMapping, load_yaml, shown
from gpuscope.judge.notify.idle_policy.idle_holders import IdleHolder

KEYS: Final = (
    "warn_after",
    "act_after",
    "grace",
    "command",
    "pod_command",
    "dry_run",
    "trust_store",
    "slurm_agents",
    "exceptions",
)
EXCEPTION_KEYS: Final = ("users", "partitions", "namespaces", "labels")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
MIN_SECONDS: Final = 900.0
"""A shorter pause is not idleness: a checkpoint, an evaluation."""
MIN_GRACE_SECONDS: Final = 300.0
"""A person needs some minutes to read a message and to act on it."""


@dataclass(frozen=True, slots=True)
class IdleExceptions:
    users: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    labels: frozenset[tuple[str, str]] = frozenset()
    """Pod label and value, as in series: `label_keep`; an empty value is any."""

    def unknown_for(self, values: Mapping[str, str]) -> str:
        """What is not known of a job and decides whether it is excepted; empty if nothing is missing."""
        needed = (("user", self.users), ("partition", self.partitions))
        return next((name for name, excepted in needed if excepted and not values[name]), "")


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    warn_after_seconds: tuple[float, ...] = (3600.0, 6300.0)
    act_after_seconds: float = 7200.0
    grace_seconds: float = 900.0
    """Between the delivery of the last warning and the command, at least."""
    command: tuple[str, ...] = ()
    """For a Slurm job; empty: nothing runs."""
    pod_command: tuple[str, ...] = ()
    is_dry_run: bool = True
    trusts_store: bool = False
    """With `--store`: only agents can write the samples of that engine. This server cannot know."""
    slurm_agents: tuple[str, ...] = ()
    """The hosts or instances that are trusted to read Slurm. Empty: every verified one, so that root of a
    compute node can pretend to read it while the real agent is down."""
    exceptions: IdleExceptions = IdleExceptions()


def load_policy(path: Path) -> IdlePolicy:
    """Raises UsageError with file, line and reason."""
    document = load_yaml(path)
    if not isinstance(document, YamlMapping):
        raise UsageError(f"{path}: an idle policy is a mapping with the keys {', '.join(KEYS)}")
    read = _PolicyReader(path)
    read.check_keys(document, KEYS)
    policy = IdlePolicy(
        warn_after_seconds=tuple(sorted(read.durations(document, "warn_after", ["60m", "105m"]))),
        act_after_seconds=read.durations(document, "act_after", ["120m"])[0],
        grace_seconds=read.durations(document, "grace", ["15m"], MIN_GRACE_SECONDS)[0],
        command=read.command(document, "command", ("job", "user", "account", "partition", "cluster")),
        pod_command=read.command(document, "pod_command", ("pod", "namespace", "cluster")),
        is_dry_run=read.switch(document, "dry_run", default=True),
        trusts_store=read.switch(document, "trust_store", default=False),
        slurm_agents=tuple(read.texts(document, "slurm_agents")),
        exceptions=read.exceptions(document),
    )
    if policy.warn_after_seconds and policy.act_after_seconds <= policy.warn_after_seconds[-1]:
        raise read.mistake(document, "act_after", "must be later than the last of warn_after")
    return policy


class _PolicyReader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def mistake(self, mapping: YamlMapping, key: str, reason: str) -> UsageError:
        line, column = mapping.places.get(key, (1, 1))
        return UsageError(f"{self._path}: line {line}, column {column}: {shown(key)}: {reason}")

    def check_keys(self, mapping: YamlMapping, known: tuple[str, ...]) -> None:
        for key in mapping:
            if key not in known:
                raise self.mistake(mapping, key, f"unknown key; there are {', '.join(known)}")

    def texts(self, mapping: YamlMapping, key: str) -> list[str]:
        value = mapping.get(key)
        entries = value if isinstance(value, list) else [] if value is None else [value]
        for entry in entries:
            if not isinstance(entry, str) or not entry:
                raise self.mistake(mapping, key, "must be a list of texts")
        return list(entries)

    def durations(
        self, mapping: YamlMapping, key: str, default: list[str], least: float = MIN_SECONDS
    ) -> list[float]:
        durations = []
        for text in self.texts(mapping, key) or default:
            try:
                seconds = with_unit(parse_positive_duration)(text)
            except ValueError as error:
                raise self.mistake(mapping, key, f"{text!r} is {error}; for example 60m") from None
            if seconds < least:
                raise self.mistake(mapping, key, f"{text} is shorter than {least / 60:g}m")
            durations.append(seconds)
        return durations

    def switch(self, mapping: YamlMapping, key: str, *, default: bool) -> bool:
        if mapping.get(key) is None:
            return default
        try:
            return parse_switch(str(mapping[key]))
        except ValueError as error:
            raise self.mistake(mapping, key, f"{mapping[key]!r} is {error}") from None

    def command(self, mapping: YamlMapping, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
        words = mapping.get(key)
        if words is None:
            return ()
        if not isinstance(words, list) or not words:
            raise self.mistake(mapping, key, "must be a list of words, for example [scancel, '{job}']")
        command = tuple(self.texts(mapping, key))
        for name in placeholders(command):
            if name not in known:
                there = ", ".join(f"{{{placeholder}}}" for placeholder in known)
                raise self.mistake(mapping, key, f"{{{name}}} is not known here; there are {there}")
        return command

    def exceptions(self, mapping: YamlMapping) -> IdleExceptions:
        value = mapping.get("exceptions")
        if value is None:
            return IdleExceptions()
        if not isinstance(value, YamlMapping):
            raise self.mistake(mapping, "exceptions", f"must have the keys {', '.join(EXCEPTION_KEYS)}")
        self.check_keys(value, EXCEPTION_KEYS)
        labels = set()
        for text in self.texts(value, "labels"):
            name, _, wanted = text.partition("=")
            labels.add(("label_" + re.sub(r"[^a-zA-Z0-9_]", "_", name), wanted))
        return IdleExceptions(
            frozenset(self.texts(value, "users")),
            frozenset(self.texts(value, "partitions")),
            frozenset(self.texts(value, "namespaces")),
            frozenset(labels),
        )


def placeholders(words: tuple[str, ...]) -> list[str]:
    """The names in braces."""
    return [name for word in words for name in _PLACEHOLDER.findall(word)]


def fill_command(words: tuple[str, ...], values: dict[str, str]) -> tuple[str, ...]:
    return tuple(_PLACEHOLDER.sub(lambda placeholder: values.get(placeholder[1], ""), word) for word in words)


# Why a holder is left alone, or no command may end it: which of its GPUs is not known to be idle, who is
# excepted, which name is not one. An empty text means that nothing is in the way.

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


def command_words(holder: IdleHolder, policy: IdlePolicy) -> tuple[str, ...]:
    return policy.command if holder.key.kind == "job" else policy.pod_command


def command_values(holder: IdleHolder) -> dict[str, str]:
    if holder.key.kind == "job":
        return {
            "job": holder.command_name,
            "user": holder.user,
            "account": holder.account,
            "partition": holder.partition,
            "cluster": holder.key.cluster,
        }
    return {"pod": holder.key.name, "namespace": holder.key.namespace, "cluster": holder.key.cluster}


def wrong_name(values: Mapping[str, str]) -> str:
    """Which of them could be read as something else than a name."""
    return next((name for name, value in values.items() if _NAMES[name].fullmatch(value) is None), "")


def obstacle(holder: IdleHolder, had: Iterable[str], policy: IdlePolicy) -> str:
    """Why no command may end the holder, whatever it was told. `had`: the GPUs that it has or had."""
    if unknown := unknown_gpu(holder, had):
        return unknown
    if holder.unverified:
        return (
            f"anybody with a write token may have sent the samples of {min(holder.unverified)}; "
            "scrape the node, or let it push with a token that is bound to it"
        )
    words = command_words(holder, policy)
    if len(holder.clusters) > 1 and "cluster" not in placeholders(words):
        return (
            f"{len(holder.clusters)} clusters report (label `cluster`), and the command does not say which "
            "one is meant; use {cluster} in it"
        )
    if holder.het_job:
        return f"it is a part of the heterogeneous job {holder.het_job}, whose other parts may work"
    if holder.other_user:
        return f"its user is not certain: {holder.user} or {holder.other_user}"
    values = command_values(holder)
    if holder.key.kind == "job" and (missing := policy.exceptions.unknown_for(values)):
        return f"its {missing} is not known, so it may be one of the exceptions"
    if holder.key.kind == "pod" and policy.exceptions.labels and not holder.are_labels_known:
        return "its labels are not known, so it may be one of the exceptions; see --pod-labels of the agent"
    needed = _MAY_BE_UNKNOWN.intersection(placeholders(words))
    absent = min((name for name in needed if not values[name]), default="")
    return f"its {absent} is not known, and is a word of the command" if absent else ""


def unknown_gpu(holder: IdleHolder, had: Iterable[str]) -> str:
    """Which GPU of the holder is not known to be idle."""
    known = holder.idle_seconds.keys()
    if holder.strangers:
        nodes = ", ".join(sorted(holder.placement.nodes)[:MAX_NODES_NAMED])
        return f"{min(holder.strangers)} reports it and is none of the nodes that Slurm has given it ({nodes})"
    if unknown := holder.held - known:
        return f"its work on GPU {min(unknown)} is not known"
    if missing := set(had) - known:
        return f"it had GPU {min(missing)} too, which is not reported as its own now"
    if holder.key.kind != "job":
        return _several_pods(holder)
    if holder.allocated is None:
        return "how many GPUs it has is not known: no agent that reads Slurm reports it"
    if holder.allocated > len(known):
        return f"Slurm has given it {holder.allocated:g} GPUs, and {len(known)} of them are reported"
    return _misplaced(holder)


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
    """Why the policy leaves the holder alone."""
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
