"""Native metrics of the agent itself: how each source does, how many GPUs there should be, what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope import __version__
from gpuscope.metrics.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.readings import ABSENT, Snapshot


class AgentMetrics:
    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        yield from _sources(snapshot)
        seen = sum(not device.lost for device in snapshot.devices)
        yield _one("gpuscope_gpus_seen", "gauge", "GPUs that answer.", seen)
        if snapshot.expected_gpus is not ABSENT:
            help_text = "GPUs this machine has by its PCI bus or its settings."
            yield _one("gpuscope_gpus_expected", "gauge", help_text, snapshot.expected_gpus)
        about = (
            ("version", __version__),
            ("node", snapshot.node),
            ("simulated", "true" if snapshot.simulated else "false"),
        )
        help_text = "This agent; the value is always 1."
        yield MetricFamily("gpuscope_agent_info", "info", help_text, [Sample(LabelSet(about), 1)])
        taken_at_help = "When these numbers were put together."
        yield _one("gpuscope_agent_snapshot_timestamp_seconds", "gauge", taken_at_help, snapshot.taken_at)
        agent = snapshot.agent
        if agent is not ABSENT:
            yield _one(
                "gpuscope_agent_start_time_seconds", "gauge", "When the agent started.", agent.started_at
            )
            yield _one("gpuscope_agent_snapshots_total", "counter", "Snapshots published.", agent.snapshots)
            cpu_help = "CPU time the agent has used."
            yield _one("gpuscope_agent_cpu_seconds_total", "counter", cpu_help, agent.cpu_seconds)
            memory_help = "Resident memory of the agent."
            yield _one("gpuscope_agent_memory_bytes", "gauge", memory_help, agent.memory_bytes)


def _one(name: str, kind: str, help_text: str, value: float) -> MetricFamily:
    return MetricFamily(name, kind, help_text, [Sample(NO_LABELS, value)])


def _sources(snapshot: Snapshot) -> Iterator[MetricFamily]:
    labelled = [(LabelSet((("source", status.name),)), status) for status in snapshot.sources]
    yield MetricFamily(
        "gpuscope_source_up",
        "gauge",
        "1 if the source answers and its numbers are fresh.",
        [Sample(labels, 1 if status.up else 0) for labels, status in labelled],
    )
    yield MetricFamily(
        "gpuscope_source_failures_total",
        "counter",
        "Reads and single calls of the source that failed.",
        [Sample(labels, status.failures) for labels, status in labelled],
    )
    yield MetricFamily(
        "gpuscope_source_duration_seconds",
        "gauge",
        "How long the last successful read took.",
        [Sample(labels, d) for labels, status in labelled if (d := status.duration_seconds) is not ABSENT],
    )
    yield MetricFamily(
        "gpuscope_source_last_success_timestamp_seconds",
        "gauge",
        "When the source last answered.",
        [Sample(labels, at) for labels, status in labelled if (at := status.last_success_at) is not ABSENT],
    )
