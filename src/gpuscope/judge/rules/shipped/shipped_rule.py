"""One shipped rule, what its alert means, and its annotations, which name node, GPU, model and owner.

Model and owner are looked up with `query` in the annotation, not joined in the expression: an alert must not be
lost because an info series is missing, nor change its labels because an owner changes.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.base.time_text import duration_text
from gpuscope.judge.checks.check import SLOW_SECONDS, Check, Severity, Subject, looks_far_back
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding_texts import SOURCE_STEPS
from gpuscope.judge.checks.thresholds import RECENT_XID_SECONDS
from gpuscope.model.vendor import ErrorCatalogue, GpuError, catalogues

EXPLAIN_PATH: Final = "/explain/alert/"
"""Of the server's page that explains an alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRule:
    check: Check
    """Where meaning, severity, duration and next step come from."""
    expression: str
    place: str
    """Template: a short name of the node, GPU or process, for the summary."""
    detail: str = ""
    """Template: the number, error or source that is wrong."""
    lookups: Mapping[str, str] = field(default_factory=dict)
    """Templates by annotation: what the labels do not say, such as model and owner."""
    next_step: str = ""
    """Template, where the labels decide; empty for the one of the check."""
    gpu_argument: str = "{{ $labels.gpu }}"
    """Template: the GPU as its vendor's commands take it."""

    @property
    def alert(self) -> str:
        return self.check.alert

    @property
    def is_slow(self) -> bool:
        """Evaluated once a minute: its check is, or it reads hours of samples, which our evaluator reads only
        where they matter and Prometheus at each evaluation."""
        # The watchdog shows that rules are evaluated.
        is_slow_check = self.check is not WATCHDOG and self.check.every_seconds == SLOW_SECONDS
        return is_slow_check or looks_far_back(self.expression)

    def annotations(self, page_url: str) -> dict[str, str]:
        """`runbook_url` is a page that gpuscope serves; without an address of gpuscope there is none."""
        meaning = self.check.meaning
        runbook = {"runbook_url": f"{page_url}{EXPLAIN_PATH}{self.alert}"} if page_url else {}
        return {
            "summary": f"{self.place}: {meaning.rstrip('.')}",
            "description": f"{meaning} {self.detail}" if self.detail else meaning,
            **self.lookups,
            "next_step": (self.next_step or self.check.shown_step).replace("{gpu_list}", self.gpu_argument),
            **runbook,
        }


@dataclass(frozen=True, slots=True)
class ShippedGroup:
    name: str
    title: str
    rules: tuple[ShippedRule, ...]
    is_default: bool = True
    """Whether `gpuscope up` evaluates it by default."""


GPU_WHERE: Final = (
    "{{ with printf `gpuscope_gpu_info{instance=%q,uuid=%q}` $labels.instance $labels.uuid | query }}"
    "{{ with first . }}{{ .Labels.node }} GPU {{ $labels.gpu }} ({{ .Labels.model }}){{ end }}"
    "{{ else }}{{ $labels.instance }} GPU {{ $labels.gpu }}{{ end }}"
)
GPU_OWNER: Final = (
    "{{ range $i, $p := printf `count by (user, namespace, pod, slurm_job)"
    " (last_over_time(gpuscope_process_memory_bytes{instance=%q,uuid=%q}[10m]))` $labels.instance $labels.uuid"
    ' | query | sortByLabel "user" }}{{ if $i }}, {{ end }}{{ if .Labels.user }}{{ .Labels.user }}'
    "{{ if .Labels.pod }} (pod {{ .Labels.namespace }}/{{ .Labels.pod }}){{ end }}"
    "{{ if .Labels.slurm_job }} (job {{ .Labels.slurm_job }}){{ end }}"
    "{{ else if .Labels.pod }}pod {{ .Labels.namespace }}/{{ .Labels.pod }}"
    "{{ else if .Labels.slurm_job }}job {{ .Labels.slurm_job }}{{ else }}owner not known{{ end }}"
    "{{ else }}no process seen in the last 10 minutes{{ end }}"
)
"""Of the last ten minutes: the processes of a GPU that is lost are gone with it. Without a sample it says only
that none was seen: a server that has just started knows no more."""
NODE_WHERE: Final = (
    "{{ with printf `gpuscope_agent_info{instance=%q}` $labels.instance | query }}"
    '{{ . | first | label "node" }}{{ else }}{{ $labels.instance }}{{ end }}'
)
OWNER: Final = (
    "{{ if $labels.pod }}pod {{ $labels.namespace }}/{{ $labels.pod }}"
    "{{ else if $labels.slurm_job }}job {{ $labels.slurm_job }}{{ with $labels.user }} ({{ . }}){{ end }}"
    "{{ else if $labels.container }}container {{ $labels.container }}"
    "{{ else if $labels.user }}{{ $labels.user }}{{ else }}owner not known{{ end }}"
)
NODE_PLACE: Final = "{{ $labels.instance | stripPort }}"
GPU_PLACE: Final = f"GPU {{{{ $labels.gpu }}}} of {NODE_PLACE}"
PROCESS: Final = "{{ with $labels.command }}{{ . }} {{ end }}(PID {{ $labels.pid }})"
_PLACES: Final = {
    Subject.GPU: GPU_PLACE,
    Subject.NODE: NODE_PLACE,
    Subject.PROCESS: f"{OWNER}, {PROCESS}, {GPU_PLACE}",
    Subject.OWNER: f"{OWNER}, {GPU_PLACE}",
    Subject.SLURM_NODE: "{{ with $labels.node }}{{ . }}{{ else }}Slurm{{ end }}",
    Subject.SERVICE: "{{ with $labels.instance }}{{ . }}{{ else }}gpuscope{{ end }}",
}
_LOOKUPS: Final[dict[Subject, dict[str, str]]] = {
    Subject.GPU: {"gpu": GPU_WHERE, "owner": GPU_OWNER},
    Subject.NODE: {"node": NODE_WHERE},
    Subject.PROCESS: {"gpu": GPU_WHERE, "owner": OWNER},
    Subject.OWNER: {"gpu": GPU_WHERE, "owner": OWNER},
    Subject.SLURM_NODE: {},
    Subject.SERVICE: {},
}


def error_text(
    errors: ErrorCatalogue,
    codes: Iterable[str],
    text_of: Callable[[GpuError], str],
    otherwise: str = "",
    variable: str = "",
) -> str:
    """A template: the text of the error whose code is in `variable`, or else in the alert's label."""
    texts = {code: text_of(errors.explain(code)) for code in codes}
    return value_text(variable or f"$labels.{errors.key}", texts, otherwise)


def value_text(value_of: str, texts: Mapping[str, str], otherwise: str = "") -> str:
    """A template: the text that belongs to a value, such as that of a label."""
    by_text: dict[str, list[str]] = {}
    for value, text in texts.items():
        by_text.setdefault(text, []).append(value)
    branches: list[str] = []
    for text, values in by_text.items():
        condition = f'eq {value_of} "{values[0]}"'
        if len(values) > 1:
            condition = f'match "^({"|".join(values)})$" {value_of}'
        branches.append(f"{{{{- {'else if' if branches else 'if'} {condition} }}}}{text}")
    if otherwise:
        branches.append(f"{{{{- else }}}}{otherwise}")
    # A line each in the file: YAML makes a space of the line break, and `-` removes it.
    return "\n".join([*branches, "{{- end }}"])


def _meaning_of(row: GpuError) -> str:
    return row.meaning


def _next_step_of(row: GpuError) -> str:
    return row.next_step


def _error_detail(errors: ErrorCatalogue, codes: Iterable[str]) -> str:
    happened = f"{errors.word} {{{{ $labels.{errors.key} }}}}, {{{{ $value | humanizeDuration }}}} ago:"
    return f'{happened}{{{{ " " }}}}\n{error_text(errors, codes, _meaning_of)}'


_ERROR_CHECKS: Final = {row.kind: (errors, row) for errors in catalogues() for row in errors.checks}


def _losing_codes(errors: ErrorCatalogue) -> list[str]:
    codes = {code for row in errors.checks if row.loses_gpu for code in row.codes}
    return sorted(codes, key=lambda code: (len(code), code))


def _with_last_error(text_of: Callable[[ErrorCatalogue, str], str], otherwise: str = "") -> str:
    """A template: for each vendor a text about the last error that may have made the alert's GPU unreachable. A
    variable in it has the code."""
    text = otherwise
    for errors in catalogues():
        variable = f"${errors.key}"
        ages = f'{errors.age_metric}{{instance=%q,uuid=%q,{errors.key}=~"{"|".join(_losing_codes(errors))}"}}'
        asked = f"bottomk(1, {ages} < {RECENT_XID_SECONDS:g})"
        text = (
            f"{{{{- with printf `{asked}` $labels.instance $labels.uuid | query }}}}"
            f'{{{{ {variable} := . | first | label "{errors.key}" }}}}{text_of(errors, variable)}'
            f"{{{{ else }}}}{text}{{{{ end }}}}"
        )
    return text


def _came_before(errors: ErrorCatalogue, variable: str) -> str:
    meaning = error_text(errors, _losing_codes(errors), _meaning_of, variable=variable)
    return f'{{{{ " " }}}}{errors.word} {{{{ {variable} }}}} came before:{{{{ " " }}}}\n{meaning}'


_SLURM_NODES: Final = "{{ with $labels.node }}Node {{ . }}{{ else }}Nodes: {{ $value }}{{ end }}."
# A count stands behind its noun: "1 nodes" would be wrong, and a template has no plural.
_DETAILS: Final = {
    "node_down": "Target {{ $labels.instance }} of job {{ $labels.job }}.",
    "node_stale": "They are {{ $value | humanizeDuration }} old.",
    "source_down": "Source {{ $labels.source }}.",
    "source_slow": "Source {{ $labels.source }}: {{ $value | humanizeDuration }}.",
    "gpus_missing": (
        "GPUs that are missing: {{ $value }}"
        "{{ with printf `gpuscope_gpus_expected{instance=%q}` $labels.instance | query }}"
        " of {{ . | first | value }}{{ end }}."
    ),
    "gpu_count_dropped": "GPUs that answer: {{ $value }}.",
    "host_memory_low": "{{ $value | humanizePercentage }} is available.",
    "disk_filling": "{{ $labels.mountpoint }}.",
    "clock_skew": "It is off by {{ $value | humanizeDuration }}.",
    "gpu_lost": _with_last_error(_came_before),
    "recovery_action": "Recovery action {{ $value }}.",
    **{kind: _error_detail(errors, row.codes) for kind, (errors, row) in _ERROR_CHECKS.items()},
    "ecc_uncorrected": "Errors: {{ $value }}.",
    "throttled": "Reason: {{ $labels.reason }}.",
    "memory_hot": "{{ $value }} °C.",
    "pcie_degraded": "Lanes: {{ $value }}.",
    "pcie_generation": "Generation {{ $value }}.",
    "nvlink_down": "Link {{ $labels.link }}.",
    "nvlink_errors": "Link {{ $labels.link }}, {{ $labels.error }}.",
    "rail_down": "Port {{ $labels.device }}.",
    "rail_slow": "Port {{ $labels.device }}.",
    "link_flaps": "Port {{ $labels.device }}.",
    "link_errors": "Port {{ $labels.device }}.",
    "job_hangs": "Rank {{ $labels.rank }}, for {{ $value | humanizeDuration }}.",
    "memory_full": "{{ $value | humanizePercentage }} is used.",
    "hung": "For {{ $value | humanizeDuration }}.",
    "waits_for_disk": "{{ $value | humanizePercentage }} of the time.",
    "waits_for_network": "{{ $value | humanizePercentage }} of the time.",
    "unused": "For {{ $value | humanizeDuration }}.",
    "failed_jobs": "Programs: {{ $value }}.",
    "queue_waits": "Idle GPUs: {{ $value }}.",
    "held_idle": "Idle for {{ $value | humanizeDuration }}.",
    "orphan_memory": "{{ $value | humanize1024 }}B.",
    "long_running": "It has run for {{ $value | humanizeDuration }}.",
    "memory_leak": "It needs {{ $value | humanize1024 }}B in two hours.",
    "slurm_nodes_down": _SLURM_NODES,
    "slurm_drained": _SLURM_NODES,
    "slurm_queue_stuck": "Waiting jobs: {{ $value }}.",
    "slurm_dbd_backlog": "Waiting records: {{ $value }}.",
}


def rule_of_check(check: Check) -> ShippedRule:
    """The rule over gpuscope's own metrics."""
    lookups = _LOOKUPS[check.subject]
    next_step, general = "", check.shown_step
    if check.kind in _ERROR_CHECKS:
        errors, row = _ERROR_CHECKS[check.kind]
        next_step = error_text(errors, row.codes, _next_step_of, general)
    if check.kind == "gpu_lost":
        next_step = _with_last_error(
            lambda errors, variable: error_text(
                errors, _losing_codes(errors), _next_step_of, general, variable
            ),
            general,
        )
    if check.kind == "source_down":
        next_step = value_text("$labels.source", SOURCE_STEPS, general)
    return ShippedRule(
        check=check,
        expression=check.promql,
        place=_PLACES[check.subject],
        detail=_DETAILS.get(check.kind, ""),
        lookups=lookups,
        next_step=next_step,
    )


WATCHDOG: Final = Check(
    kind="watchdog",
    alert="Watchdog",
    subject=Subject.SERVICE,
    severity=Severity.INFO,
    promql="vector(1)",
    meaning="This alert always fires: when it stops, alerts are no longer evaluated or delivered.",
    next_step="send it to a dead-man's switch that complains when it is missing",
)


# What a shipped alert means: the facts of `gpuscope explain alert`, and of the page behind `runbook_url`.

Fact = tuple[str, str]
"""Heading and text."""

EXPLAINED: Final[dict[str, Check]] = {check.alert: check for check in (*CHECKS.values(), WATCHDOG)}
"""Checks by the name of their alert."""


def alert_facts(check: Check) -> list[Fact]:
    return list(_facts(check))


def _facts(check: Check) -> Iterator[Fact]:
    yield "meaning", check.meaning
    yield "severity", "none" if check is WATCHDOG else str(check.severity)
    yield "next step", check.shown_step.replace("{gpu_list}", "GPU")
    for errors in catalogues():
        if any(check.kind == row.kind for row in errors.checks):
            explain = f"gpuscope explain {errors.key} N"
            yield f"by {errors.word}", f"{explain} has the meaning and the next step of each {errors.word}"
    if check.kind == "source_down":
        yield from ((f"source {source}", step) for source, step in SOURCE_STEPS.items())
    if check.for_seconds:
        yield "fires after", duration_text(round(check.for_seconds * 1000))
    if check.inhibited_by:
        yield "not sent while", ", ".join(CHECKS[kind].alert for kind in check.inhibited_by)
    yield "finding", check.kind
    yield "expression", check.promql


def alert_page(check: Check) -> str:
    """HTML without scripts and styles: the server's content security policy allows none inside a page."""
    rows = "\n".join(
        f"<dt>{html.escape(heading)}</dt><dd>{_value(heading, text)}</dd>" for heading, text in _facts(check)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(check.alert)} · gpuscope</title></head>\n<body>\n"
        f"<h1>{html.escape(check.alert)}</h1>\n<dl>\n{rows}\n</dl>\n"
        '<p><a href="../../#/alerts">Alerts</a> · <a href="../../#/findings">Findings</a></p>\n</body></html>\n'
    )


def _value(heading: str, text: str) -> str:
    escaped = html.escape(text)
    return f"<code>{escaped}</code>" if heading in ("expression", "finding") else escaped
