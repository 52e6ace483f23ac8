"""Unit tests of the shipped rules in promtool's format, from the hand-written series of `rule_test_series`.

The expected annotations are written here from the meaning of the rule, not from its templates: a template that
names the wrong node or owner fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpuscope.judge.checks.check import Subject
from gpuscope.judge.rules.shipped import shipped_groups
from gpuscope.judge.rules.shipped.rule_files import yaml_text
from gpuscope.judge.rules.shipped.shipped_rule import WATCHDOG, ShippedRule
from tools.rule_test_series import CASES, LABELS, Case

IDENTITY = {
    'gpuscope_agent_info{{N},node="node1"}': "1x{minutes}",
    'gpuscope_gpu_info{{G},node="node1",model="NVIDIA H100"}': "1x{minutes}",
    "gpuscope_process_memory_bytes{{P}}": "1x{minutes}",
}
"""Series that say which node, model and owner it is."""
SMI_IDENTITY = {'nvidia_smi_gpu_info{{S},index="0",name="NVIDIA H100"}': "1x{minutes}"}
PLACES = {
    Subject.GPU: "GPU 0 of node1",
    Subject.NODE: "node1",
    Subject.PROCESS: "pod ml/train, train.py (PID 7), GPU 0 of node1",
    Subject.OWNER: "pod ml/train, GPU 0 of node1",
    Subject.SLURM_NODE: "n1",
    Subject.SERVICE: "node1:9400",
}
LOOKUPS = {
    Subject.GPU: {"gpu": "node1 GPU 0 (NVIDIA H100)", "owner": "alice (pod ml/train)"},
    Subject.NODE: {"node": "node1"},
    Subject.PROCESS: {"gpu": "node1 GPU 0 (NVIDIA H100)", "owner": "pod ml/train"},
    Subject.OWNER: {"gpu": "node1 GPU 0 (NVIDIA H100)", "owner": "pod ml/train"},
    Subject.SLURM_NODE: {},
    Subject.SERVICE: {},
}
LONG_MINUTES = 180
FIRES, FIRES_TOO, QUIET = "fires", "fires over another exporter", "does not fire"
SUBJECT_LABELS = {
    Subject.GPU: "{G}", Subject.NODE: "{N}", Subject.PROCESS: "{P}", Subject.OWNER: "{O}",
    Subject.SLURM_NODE: "",
    Subject.SERVICE: "{N}",
}  # fmt: skip


def _fill(text: str) -> str:
    for placeholder, labels in LABELS.items():
        text = text.replace(placeholder, labels)
    return text


def _identity(group: str) -> Mapping[str, str]:
    if group == "nvidia-gpu-exporter":
        return SMI_IDENTITY
    return IDENTITY if group.startswith("gpuscope-") else {}


def _expected_labels(rule: ShippedRule, case: Case) -> dict[str, str]:
    text = case.own_labels or ",".join(
        part for part in (SUBJECT_LABELS[rule.check.subject], case.labels) if part
    )
    found = dict(re.findall(r'(\w+)="([^"]*)"', _fill(text)))
    return {**found, "severity": "none" if rule.check is WATCHDOG else str(rule.check.severity)}


def _expected_annotations(group: str, rule: ShippedRule, case: Case) -> dict[str, str]:
    check = rule.check
    place, lookups = PLACES[check.subject], LOOKUPS[check.subject]
    if not group.startswith("gpuscope-"):
        lookups = {}
    if group == "dcgm-exporter" and check.subject is not Subject.NODE:
        place = PLACES[Subject.GPU]
        owner = "owner not known: dcgm-exporter gives pods only"
        lookups = {"gpu": "node1 GPU 0 (NVIDIA H100)", "owner": owner}
    if group == "nvidia-gpu-exporter" and check.subject is Subject.GPU:
        place, lookups = "GPU u1 of node1", {"gpu": "node1:9835 GPU 0 (NVIDIA H100)"}
    gpu = "GPU-u1" if group == "nvidia-gpu-exporter" else "0"
    if case.own_labels.isspace():  # an alert without labels
        place = "gpuscope"
    meaning = check.meaning
    return {
        "summary": f"{place}: {meaning.rstrip('.')}",
        "description": f"{meaning} {case.detail}" if case.detail else meaning,
        **lookups,
        "next_step": check.shown_step.replace("{gpu_list}", gpu),
        **case.expected,
    }


def _series_lines(series: Mapping[str, str]) -> Iterator[str]:
    yield "    input_series:" if series else "    input_series: []"
    for name, values in series.items():
        yield f"      - series: {yaml_text(_fill(name))}"
        yield f"        values: {values}"


def _test_lines(group: str, rule: ShippedRule, case: Case) -> Iterator[str]:
    for title, series in ((FIRES, case.fires), (FIRES_TOO, case.also_fires), (QUIET, case.quiet)):
        if (title is QUIET and rule.check is WATCHDOG) or (title is FIRES_TOO and not series):
            continue  # the watchdog always fires
        yield f"  - name: {rule.alert} {title}"
        yield "    interval: 1m"
        minutes = case.at.removesuffix("m")
        own = {
            name: values.format(minutes=minutes)
            for name, values in _identity(group).items()
            if name not in series
        }
        yield from _series_lines({**own, **series})
        yield "    alert_rule_test:"
        yield f"      - eval_time: {case.at}"
        yield f"        alertname: {rule.alert}"
        if title is QUIET:
            yield "        exp_alerts: []"
            continue
        yield "        exp_alerts:"
        for heading, pairs in (
            ("- exp_labels:", _expected_labels(rule, case)),
            ("  exp_annotations:", _expected_annotations(group, rule, case)),
        ):
            yield f"          {heading}"
            yield from (f"              {name}: {yaml_text(text)}" for name, text in pairs.items())


def _is_long(case: Case) -> bool:
    return int(case.at.removesuffix("m")) > LONG_MINUTES


def unit_test_files() -> dict[str, str]:
    """Files by name. Cases of many hours are in a file of their own: promtool evaluates every rule of a file at
    the interval that the file names, so a day in steps of a minute costs more than all other cases."""
    files = {}
    for group in shipped_groups():
        cases = CASES[group.name]
        for suffix, interval, rules in (
            ("", "1m", [rule for rule in group.rules if not _is_long(cases[rule.alert])]),
            ("-long", "15m", [rule for rule in group.rules if _is_long(cases[rule.alert])]),
        ):
            if not rules:
                continue
            lines = [
                f"# Unit tests of rules/{group.name}.yml, for promtool. Written by `make docs`; "
                "the series are in\n# tools/rule_test_series.py.",
                f"rule_files: [../rules/{group.name}.yml]",
                f"evaluation_interval: {interval}",
                "tests:",
            ]
            for rule in rules:
                lines += [*_test_lines(group.name, rule, cases[rule.alert]), ""]
            files[f"{group.name}{suffix}.test.yml"] = "\n".join(lines).rstrip() + "\n"
    return files
