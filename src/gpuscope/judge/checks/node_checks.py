"""What can be wrong with a node: no answer, old numbers, a source that is down, GPUs that are missing.

Each expression is limited to nodes that have an agent: other targets of the same Prometheus are not ours.
"""

from __future__ import annotations

from typing import Final

from gpuscope.judge.checks.check import Check, Severity, Share, Subject
from gpuscope.judge.checks.thresholds import (
    AGENT_STALE_SECONDS,
    CLOCK_SKEW_SECONDS,
    DISK_RATIO,
    HOST_MEMORY_RATIO,
    NODE_CLOCK_SECONDS,
    SOURCE_SLOW_SECONDS,
)

_LONG_AGO: Final = ("6m", "30m", "2h", "8h", "1d")
_PUSHED: Final = " or on (instance) ".join(
    f"(gpuscope_agent_info offset {ago} unless on (instance) up offset {ago})" for ago in _LONG_AGO
)
"""Agents of the last day that nobody scraped. A node that is down was there at one of these times."""
HAD_AGENT: Final = (
    "group by (job, instance) (last_over_time(gpuscope_agent_info[5m]) "
    "or last_over_time(gpuscope_agent_info[1d:5m]))"
)
"""Targets that were agents within a day; an agent of the last minutes may be between two steps."""
_WAS_WATCHED: Final = "(count(gpuscope_agent_info offset 5m) or count(gpuscope_store_full offset 5m))"
"""The server itself was there five minutes ago: after its own pause nodes come back one by one."""
_HAS_AGENT: Final = "and on (instance) gpuscope_agent_info"
_TAKEN_AT: Final = "gpuscope_agent_snapshot_timestamp_seconds"
_AGE: Final = "gpuscope_agent_snapshot_age_seconds"

NODE_CHECKS: Final = (
    Check(
        kind="node_down",
        alert="HostDown",
        subject=Subject.NODE,
        severity=Severity.CRITICAL,
        # A node that pushes has no `up`: it is down when it sends nothing.
        promql=(
            f"up == 0 and on (job, instance) {HAD_AGENT} "
            f"or (({_PUSHED}) unless on (instance) gpuscope_agent_info and on () {_WAS_WATCHED})"
        ),
        for_seconds=300,
        share=Share.WHOLE,
        meaning="The node's agent does not answer.",
        next_step="check power, network and the agent: systemctl status gpuscope-agent on the node",
    ),
    Check(
        kind="target_down",
        alert="TargetDown",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=(f"up == 0 unless on (job, instance) {HAD_AGENT} and on (job) {HAD_AGENT}"),
        for_seconds=300,
        meaning="A scrape target of a job of agents has never answered as one.",
        next_step="check the exporter at this address, or remove it from the configuration",
    ),
    Check(
        kind="node_stale",
        alert="AgentStale",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=f"{_AGE} > {AGENT_STALE_SECONDS:g}",
        for_seconds=120,
        value_is_age=True,
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
        for_seconds=300,
        inhibited_by=("node_down",),
        meaning="A source of numbers does not answer.",
        next_step="run gpuscope doctor on the node: it names what the source needs",
    ),
    Check(
        kind="source_slow",
        alert="SourceSlow",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=f"gpuscope_source_duration_seconds > {SOURCE_SLOW_SECONDS:g}",
        for_seconds=600,
        inhibited_by=("source_down",),
        meaning="Reading the driver takes seconds, often the first sign that it will hang.",
        next_step="look for lines of the driver in dmesg",
    ),
    Check(
        kind="gpus_missing",
        alert="GpusMissing",
        subject=Subject.NODE,
        severity=Severity.CRITICAL,
        # A GPU that is lost has an alert of its own.
        promql=(
            "gpuscope_gpus_expected - gpuscope_gpus_seen - on (job, instance) "
            "(count by (job, instance) (gpuscope_gpu_up == 0) or on (job, instance) 0 * gpuscope_gpus_seen) > 0"
        ),
        for_seconds=120,
        inhibited_by=("node_down",),
        meaning="Fewer GPUs answer than the PCI bus has, or than the settings expect.",
        next_step="look for the driver's lines in dmesg; power-cycle the node; reseat the card if need be",
    ),
    Check(
        kind="gpu_count_dropped",
        alert="GpuCountDropped",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql="gpuscope_gpus_seen < max_over_time(gpuscope_gpus_seen[6h:5m])",
        for_seconds=300,
        inhibited_by=("node_down", "gpus_missing", "gpu_lost"),
        meaning="Fewer GPUs answer than some hours ago.",
        next_step="look for the driver's lines in dmesg; set --expected-gpus where the number of GPUs is known",
    ),
    Check(
        kind="host_memory_low",
        alert="HostMemoryLow",
        subject=Subject.NODE,
        severity=Severity.WARNING,
        promql=(
            f"node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < {HOST_MEMORY_RATIO:g} {_HAS_AGENT}"
        ),
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
            f"(node_filesystem_avail_bytes / node_filesystem_size_bytes < {DISK_RATIO:g} "
            "or predict_linear(node_filesystem_avail_bytes[3h], 86400) <= 0) "
            f"unless on (instance, mountpoint) node_filesystem_readonly == 1 {_HAS_AGENT}"
        ),
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
        # Of a node that pushes, samples carry its own clock: they may come from the future.
        promql=(
            f"abs(timestamp({_TAKEN_AT}) - {_TAKEN_AT} - {_AGE}) > {NODE_CLOCK_SECONDS:g} "
            f"or timestamp({_TAKEN_AT}) - time() > {NODE_CLOCK_SECONDS:g} "
            f"or abs(node_timex_offset_seconds) > {CLOCK_SKEW_SECONDS:g} {_HAS_AGENT}"
        ),
        for_seconds=600,
        inhibited_by=("node_down",),
        meaning="The node's clock is off; times of events on several nodes cannot be compared.",
        next_step="check chrony or systemd-timesyncd on the node",
    ),
)
