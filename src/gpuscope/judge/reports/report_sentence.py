"""Sentences of reports, receipts and coverage: English by key; the page has the keys in its other languages.

A sentence is a string, because a terminal, a file and most clients show it as it is. Its key and its arguments
go along, so that the page can say the same in another language. `{at}` is a time in seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Self

from gpuscope.base.time_text import to_rfc3339

SentenceValue = str | int | float

REPORT_TEXTS: Final[dict[str, str]] = {
    "missing.filling": "the past is still being filled in: complete until {at}, where the report ends",
    "missing.allocations": (
        "Slurm gave away GPUs {count} times in the range, too many to read: GPUs that a job held without a "
        "process count as free on nodes without a prolog"
    ),
    "missing.allocations_rolled_up": (
        "{hours:.1f} h of the range are known from roll-ups only, which do not say which GPUs Slurm gave away: "
        "those that a job held without a process count as free on nodes without a prolog"
    ),
    "missing.allocations_refused": (
        "the engine does not say which GPUs Slurm gave away: those that a job held without a process count as "
        "free on nodes without a prolog: {reason}"
    ),
    "missing.refused": "the engine refused {hours:.1f} h of the range, which are not in the report: {reason}",
    "missing.samples_gone": (
        "samples of the first {hours:.1f} h are no longer kept; "
        "roll-ups have whole hours, so the report begins that much later"
    ),
    "missing.no_history": (
        "the range has no {metric}: no agent, one of an older version, "
        "or a range shorter than a scrape interval"
    ),
    "missing.no_owner": "the history has no owner of kind {kind}: all {hours:.1f} h are unattributed",
    "missing.no_label": (
        "no pod of the history has the label {label}; agents export the labels that --pod-labels names"
    ),
    "missing.parts_differ": "the parts differ from the GPU-hours by {hours:+.2f} h, more than 0.1 %",
    "missing.late": "the history begins {hours:.1f} h after the start of the range",
    "missing.late_at": "the history begins {hours:.1f} h after the start of the range, at {at}",
    "missing.first_seen": "{count} of {gpus} GPUs were first seen inside the range",
    "missing.left": "{count} GPUs sent nothing in the last 7 days; they count until their last sample",
    "missing.node": "{node}: {hours:.1f} GPU-hours lost: the agent was down or a GPU did not answer",
    "missing.silent_node": (
        "{node}: {hours:.1f} GPU-hours lost; no sample after {at}: "
        "the agent is down, or its samples have not arrived yet"
    ),
    "missing.more_nodes": "{count} more nodes: {hours:.1f} GPU-hours lost",
    "missing.fast_clock": (
        "{node}: its counters grew {hours:.2f} h more than the range has: "
        "the clocks of the node and the server differ"
    ),
    "missing.no_rate": "no rate for model {model}: {hours:.1f} GPU-hours are not in the cost",
    "missing.no_energy": (
        "{hours:.1f} GPU-hours are without energy: the GPUs do not measure it, or several owners share them"
    ),
    "missing.no_gpu": "the history has no GPU in this range: no gpuscope agent, or older than the retention",
    "missing.not_read": "{hours:.1f} GPU-hours are missing: the agent was down, or the GPU was not read",
    "missing.unread": "{hours:.1f} h of the range are not read yet; ask again in a minute",
    "missing.no_processes": (
        "{hours:.1f} GPU-hours are without processes and owners: findings about use are not known there"
    ),
    "missing.some_processes": (
        "{hours:.1f} GPU-hours are without processes and owners, or between MIG instances"
    ),
    "missing.kind": "{kind} is not known for {hours:.1f} h: {reason}",
    "note.early": (
        "each GPU counts from its last reading before the start; together {hours:.1f} h "
        "more than its range of {range_hours:.1f} h"
    ),
    "note.rollups": "read from roll-ups: {hours:.1f} h, from samples: {sample_hours:.1f} h",
    "note.kept": "samples are kept for {days:g} days, roll-ups for {rollup_days:g} days",
    "note.kept_by_engine": "{product} keeps samples and roll-ups for {days:g} days",
    "note.retention_unknown": "roll-ups live as long as the engine's retention, which it does not say",
    "note.mig_energy": "energy of MIG instances is an estimate: by slices at idle power, by activity above it",
    "receipt.xid": "XID {xid} occurred {count} times on its GPUs.",
    "receipt.xid_once": "XID {xid} occurred once on its GPUs.",
    "receipt.waits_for_rank": "Its GPUs spun and waited for a slower one {percent} % of the time.",
    "receipt.throttled": "A GPU was slowed down ({reason}) for {percent} % of the time.",
    "receipt.all_unused": "None of its GPUs was used.",
    "receipt.unused": "{count} of {gpus} GPUs were never used.",
    "receipt.uneven": "Its GPUs worked unevenly, from {low} to {high} % of the time.",
    "receipt.idle_job": "A GPU was idle for {hours:.1f} h at a stretch; end a job when its work is done.",
    "receipt.idle_pod": "A GPU was idle for {hours:.1f} h at a stretch; end a pod when its work is done.",
    "receipt.low": "Its GPUs were busy {busy} % of the time.",
    "receipt.low.waits_for_disk": (
        "Its GPUs were busy {busy} % of the time; file I/O blocked it {percent} % of the time."
    ),
    "receipt.low.waits_for_network": (
        "Its GPUs were busy {busy} % of the time; it waited for the network {percent} % of the time."
    ),
    "receipt.low.waits_for_data": (
        "Its GPUs were busy {busy} % of the time; one thread used a whole core {percent} % of the time."
    ),
    "receipt.low_memory": (
        "It used at most {percent} % of a GPU's memory; a smaller GPU or MIG instance would do."
    ),
    "receipt.short": "It ran for {percent} % of its time limit; jobs with a shorter limit start sooner.",
    "unknown.work": "the work of {hours:.2f} GPU-hours: the driver does not measure it by process",
    "unknown.filling": "what it did after {at}: the past is still being filled in",
    "unknown.first_hours": "its first {hours:.1f} h, until {at}: its GPUs were not read then",
    "unknown.before": "what it did before {at}, if it was there: its GPUs were not read then",
    "unknown.gaps": "{hours:.1f} GPU-hours of its time: the agent was down, or a GPU did not answer",
    "unknown.requested_pod": "how many GPUs it requested: the history has no allocation of it",
    "unknown.requested_job": "how many GPUs it requested: no agent reads Slurm (docs/slurm.md)",
    "unknown.requested_job_not_listed": "how many GPUs it requested: Slurm did not list it when it was read",
    "unknown.waited_not_listed": "how long it waited: Slurm did not list it when it was read",
    "unknown.waited": "how long it waited: no agent reads Slurm (docs/slurm.md)",
    "unknown.memory": "its peak GPU memory",
    "unknown.energy": "its energy: the GPUs do not measure it, or several owners share them",
    "unknown.array": "{count} more tasks of the array: each has a receipt, {job}_TASK",
    "unknown.host": "CPU and main memory; `{command}` shows them",
}

_SPEC: Final = re.compile(r":[^{}]*(?=\})")


class ReportSentence(str):
    """`key` is one of `REPORT_TEXTS`, `args` has a value for each name in its text."""

    __slots__ = ("args", "key")

    key: str
    args: Mapping[str, SentenceValue]

    def __new__(cls, key: str, **args: SentenceValue) -> Self:
        shown = {**args, "at": to_rfc3339(float(args["at"]))} if "at" in args else args
        sentence = super().__new__(cls, REPORT_TEXTS[key].format_map(shown))
        sentence.key, sentence.args = key, args
        return sentence


def texts_without_formats() -> dict[str, str]:
    """For the page, which formats numbers itself: `{hours:.1f}` as `{hours}`."""
    return {key: _SPEC.sub("", text) for key, text in REPORT_TEXTS.items()}
