"""What can be wrong with a node: no answer, old numbers, a source that is down, GPUs that are missing."""

from __future__ import annotations

from typing import Final

from gpuscope.health.check import Check, Severity, Subject, is_at
from gpuscope.health.facts import NodeFacts
from gpuscope.health.thresholds import (
    AGENT_STALE_SECONDS,
    CLOCK_SKEW_SECONDS,
    DISK_RATIO,
    HOST_MEMORY_RATIO,
    SOURCE_SLOW_SECONDS,
)
from gpuscope.readings import ABSENT

_NOT_LIVE = "the live picture does not carry this metric"


def _is_stale(node: NodeFacts, now: float) -> bool:
    taken_at = node.number("gpuscope_agent_snapshot_timestamp_seconds")
    return taken_at is not ABSENT and now - taken_at > AGENT_STALE_SECONDS


def _misses_gpus(node: NodeFacts, now: float) -> bool:
    seen, expected = node.number("gpuscope_gpus_seen"), node.number("gpuscope_gpus_expected")
    return seen is not ABSENT and expected is not ABSENT and seen < expected


def _is_short_of_memory(node: NodeFacts, now: float) -> bool:
    free, total = node.number("node_memory_MemAvailable_bytes"), node.number("node_memory_MemTotal_bytes")
    return free is not ABSENT and total is not ABSENT and total > 0 and free / total < HOST_MEMORY_RATIO


NODE_CHECKS: Final = (
    Check(
        kind="node_down",
        alert="HostDown",
        subject=Subject.NODE,
        severity=Severity.CRITICAL,
        promql="up == 0",
        live=lambda node, now: is_at(node.number("up"), 0),
        for_seconds=300,
        meaning="The node's exporter does not answer.",
        next_step="check power, network and the agent: systemctl status gpuscope-agent on the node",
    ),
    Check(
        kind="target_down",
        alert="TargetDown",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql="up == 0 unless on (instance) count_over_time(gpuscope_agent_info[1d])",
        one_form_because="the scraper's own state says it live, with the error",
        for_seconds=300,
        meaning="A scrape target that is not a gpuscope agent does not answer.",
        next_step="check the exporter at this address, or remove it from the configuration",
    ),
    Check(
        kind="node_stale",
        alert="AgentStale",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=f"time() - gpuscope_agent_snapshot_timestamp_seconds > {AGENT_STALE_SECONDS:g}",
        live=_is_stale,
        for_seconds=120,
        inhibited_by=("node_down",),
        meaning="The agent answers, but its numbers are old.",
        next_step="read the agent's log; run gpuscope doctor on the node",
    ),
    Check(
        kind="source_down",
        alert="SourceDown",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql="gpuscope_source_up == 0",
        live=lambda node, now: 0 in node.by_label.get("gpuscope_source_up", {}).values(),
        for_seconds=300,
        inhibited_by=("node_down",),
        meaning="A source of numbers does not answer.",
        next_step="run nvidia-smi on the node; after a driver upgrade, reboot; gpuscope doctor says more",
    ),
    Check(
        kind="source_slow",
        alert="SourceSlow",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=f"gpuscope_source_duration_seconds > {SOURCE_SLOW_SECONDS:g}",
        live=lambda node, now: any(
            seconds > SOURCE_SLOW_SECONDS
            for seconds in node.by_label.get("gpuscope_source_duration_seconds", {}).values()
        ),
        for_seconds=600,
        inhibited_by=("source_down",),
        meaning="Reading the driver takes seconds, often the first sign that it will hang.",
        next_step="switch persistence mode on (nvidia-persistenced); look for NVRM lines in dmesg",
    ),
    Check(
        kind="gpus_missing",
        alert="GpusMissing",
        subject=Subject.NODE,
        severity=Severity.CRITICAL,
        promql="gpuscope_gpus_seen < gpuscope_gpus_expected",
        live=_misses_gpus,
        for_seconds=120,
        inhibited_by=("node_down",),
        meaning="Fewer GPUs answer than the PCI bus has, or than the settings expect.",
        next_step="look for XID 79 in dmesg; power-cycle the node; reseat the card if it stays away",
    ),
    Check(
        kind="gpu_count_dropped",
        alert="GpuCountDropped",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql="gpuscope_gpus_seen < max_over_time(gpuscope_gpus_seen[6h])",
        one_form_because="it compares with the last six hours",
        for_seconds=300,
        inhibited_by=("node_down", "gpus_missing"),
        meaning="Fewer GPUs answer than some hours ago.",
        next_step="look for XID 79 in dmesg; set --expected-gpus where the number of GPUs is known",
    ),
    Check(
        kind="host_memory_low",
        alert="HostMemoryLow",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=f"node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < {HOST_MEMORY_RATIO:g}",
        live=_is_short_of_memory,
        for_seconds=300,
        inhibited_by=("node_down",),
        meaning="The node's main memory is nearly used up; data loaders will be killed first.",
        next_step="see who uses it (ps --sort=-rss); lower the number of data-loader workers",
    ),
    Check(
        kind="disk_filling",
        alert="DiskFilling",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=(
            f"node_filesystem_avail_bytes / node_filesystem_size_bytes < {DISK_RATIO:g} "
            "or predict_linear(node_filesystem_avail_bytes[3h], 86400) <= 0"
        ),
        one_form_because=_NOT_LIVE,
        for_seconds=600,
        inhibited_by=("node_down",),
        meaning="A file system is nearly full, or will be within a day.",
        next_step="delete or move data; for gpuscope's own folder set --retention-bytes",
    ),
    Check(
        kind="clock_skew",
        alert="ClockSkew",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=f"abs(node_timex_offset_seconds) > {CLOCK_SKEW_SECONDS:g}",
        one_form_because=_NOT_LIVE,
        for_seconds=600,
        inhibited_by=("node_down",),
        meaning="The node's clock is off; times of events on several nodes cannot be compared.",
        next_step="check chrony or systemd-timesyncd on the node",
    ),
)
