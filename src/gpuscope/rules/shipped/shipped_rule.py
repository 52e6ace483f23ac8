"""One shipped rule, and its annotations, which name the node, the GPU, the model and the owner.

Model and owner are looked up with `query` in the annotation, not joined in the expression: an alert must not be
lost because an info series is missing, nor change its labels because an owner changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.health.check import Check, Severity, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRule:
    check: Check
    """Where meaning, severity, duration and next step come from."""
    expression: str
    place: str
    """Template: a short name of the node, GPU or process, for the summary."""
    detail: str = ""
    """Template: the number, XID or source that is wrong."""
    lookups: Mapping[str, str] = field(default_factory=dict)
    """Templates by annotation: what the labels do not say, such as model and owner."""

    @property
    def alert(self) -> str:
        return self.check.alert

    def annotations(self) -> dict[str, str]:
        meaning = self.check.meaning
        return {
            "summary": f"{self.place}: {meaning.rstrip('.')}",
            "description": f"{meaning} {self.detail}" if self.detail else meaning,
            **self.lookups,
            "next_step": self.check.next_step,
            "runbook_url": f"docs/rules.md#{self.alert.lower()}",
        }


@dataclass(frozen=True, slots=True)
class ShippedGroup:
    name: str
    title: str
    rules: tuple[ShippedRule, ...]
    is_default: bool = True
    """Whether `gpuscope up` runs it without being asked."""


GPU_WHERE: Final = (
    "{{ with printf `gpuscope_gpu_info{instance=%q,uuid=%q}` $labels.instance $labels.uuid | query }}"
    "{{ with first . }}{{ .Labels.node }} GPU {{ $labels.gpu }} ({{ .Labels.model }}){{ end }}"
    "{{ else }}{{ $labels.instance }} GPU {{ $labels.gpu }}{{ end }}"
)
GPU_OWNER: Final = (
    "{{ range $i, $p := printf `count by (user, namespace, pod, slurm_job)"
    " (gpuscope_process_memory_bytes{instance=%q,uuid=%q})` $labels.instance $labels.uuid"
    ' | query | sortByLabel "user" }}{{ if $i }}, {{ end }}{{ .Labels.user }}'
    "{{ if .Labels.pod }} (pod {{ .Labels.namespace }}/{{ .Labels.pod }}){{ end }}"
    "{{ if .Labels.slurm_job }} (job {{ .Labels.slurm_job }}){{ end }}{{ else }}no process{{ end }}"
)
NODE_WHERE: Final = (
    "{{ with printf `gpuscope_agent_info{instance=%q}` $labels.instance | query }}"
    '{{ . | first | label "node" }}{{ else }}{{ $labels.instance }}{{ end }}'
)
OWNER: Final = (
    "{{ if $labels.pod }}pod {{ $labels.namespace }}/{{ $labels.pod }}"
    "{{ else if $labels.slurm_job }}job {{ $labels.slurm_job }}{{ else }}{{ $labels.user }}{{ end }}"
)
NODE_PLACE: Final = "{{ $labels.instance | stripPort }}"
GPU_PLACE: Final = f"GPU {{{{ $labels.gpu }}}} of {NODE_PLACE}"
_PLACES: Final = {
    Subject.GPU: GPU_PLACE,
    Subject.NODE: NODE_PLACE,
    Subject.PROCESS: "{{ $labels.command }} (PID {{ $labels.pid }}) of {{ $labels.user }}, " + GPU_PLACE,
    Subject.OWNER: f"{OWNER} on {NODE_PLACE}",
    Subject.SERVICE: "{{ $labels.instance }}",
}
_LOOKUPS: Final[dict[Subject, dict[str, str]]] = {
    Subject.GPU: {"gpu": GPU_WHERE, "owner": GPU_OWNER},
    Subject.NODE: {"node": NODE_WHERE},
    Subject.PROCESS: {"gpu": GPU_WHERE, "owner": OWNER},
    Subject.OWNER: {"node": NODE_WHERE, "owner": OWNER},
    Subject.SERVICE: {},
}
_DETAILS: Final = {
    "node_down": "Target {{ $labels.instance }} of job {{ $labels.job }}.",
    "node_stale": "They are {{ $value | humanizeDuration }} old.",
    "source_down": "Source {{ $labels.source }}.",
    "source_slow": "Source {{ $labels.source }}: {{ $value | humanizeDuration }}.",
    "gpus_missing": "{{ $value }} answer.",
    "gpu_count_dropped": "{{ $value }} answer.",
    "host_memory_low": "{{ $value | humanizePercentage }} is available.",
    "disk_filling": "{{ $labels.mountpoint }}.",
    "clock_skew": "It is off by {{ $value | humanizeDuration }}.",
    "recovery_action": "Recovery action {{ $value }}.",
    "xid_hardware": "XID {{ $labels.xid }}, {{ $value | humanizeDuration }} ago.",
    "xid_nvlink": "XID {{ $labels.xid }}, {{ $value | humanizeDuration }} ago.",
    "xid_driver": "XID {{ $labels.xid }}, {{ $value | humanizeDuration }} ago.",
    "xid_application": "XID {{ $labels.xid }}, {{ $value | humanizeDuration }} ago.",
    "xid_repeats": "XID {{ $labels.xid }}.",
    "ecc_uncorrected": "{{ $value }} errors.",
    "throttled": "Reason: {{ $labels.reason }}.",
    "memory_hot": "{{ $value }} °C.",
    "pcie_degraded": "{{ $value }} lanes.",
    "pcie_generation": "Generation {{ $value }}.",
    "nvlink_down": "Link {{ $labels.link }}.",
    "nvlink_errors": "Link {{ $labels.link }}, {{ $labels.error }}.",
    "memory_full": "{{ $value | humanizePercentage }} is used.",
    "held_idle": "Idle for {{ $value | humanizeDuration }}.",
    "orphan_memory": "{{ $value | humanize1024 }}B.",
    "long_running": "It has run for {{ $value | humanizeDuration }}.",
    "slurm_nodes_down": "{{ $value }} nodes.",
    "slurm_drained": "{{ $value }} nodes.",
    "slurm_queue_stuck": "{{ $value }} jobs wait.",
    "slurm_dbd_backlog": "{{ $value }} records wait.",
}


def rule_of_check(check: Check) -> ShippedRule:
    """The rule over gpuscope's own metrics."""
    lookups = _LOOKUPS[check.subject]
    if check.kind == "allocated_unused":
        lookups = {**lookups, "owner": OWNER}  # whose the GPU is, not who uses it
    return ShippedRule(
        check=check,
        expression=check.promql,
        place=_PLACES[check.subject],
        detail=_DETAILS.get(check.kind, ""),
        lookups=lookups,
    )


WATCHDOG: Final = Check(
    kind="watchdog",
    alert="Watchdog",
    subject=Subject.SERVICE,
    severity=Severity.INFO,
    promql="vector(1)",
    one_form_because="it is no trouble",
    meaning="This alert always fires: when it stops, alerts are no longer evaluated or delivered.",
    next_step="send it to a dead-man's switch that complains when it is missing",
)
