"""Why a holder is left alone, or no command may end it: which of its GPUs is not known to be idle, who is
excepted, which name is not one. An empty text means that nothing is in the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpuscope.judge.notify.idle_policy.idle_holders import IdleHolder
from gpuscope.judge.notify.idle_policy.policy_file import IdleExceptions, IdlePolicy, placeholders

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
