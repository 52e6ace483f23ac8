"""`gpuscope rules check` and `test` against the real promtool: the same verdicts on the same files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuscope.cli import main
from tests.engines import engine, find_engine

RULES = """
groups:
- name: first
  interval: 5m
  rules:
  - record: job:up:sum
    expr: sum by (job) (up)
  - alert: Down
    expr: up == 0
    for: 2m
    labels: {severity: page}
    annotations: {summary: down}
  - alert: Kept
    expr: up == 0
    keep_firing_for: 3m
  - alert: Outside
    expr: up == 0
    labels: {cluster: '{{ $externalLabels.cluster }}', url: '{{ $externalURL }}'}
- name: second
  rules:
  - record: job:up:double
    expr: job:up:sum * 2
  - alert: Pending
    expr: ALERTS{alertstate="pending"}
"""
SERIES = """
  input_series:
  - {series: 'up{job="a",instance="x"}', values: "1 1 0x6 1x10"}
  - {series: 'up{job="a",instance="y"}', values: "1x5 stale _x3 0 1"}
"""
DOWN = "exp_labels: {severity: page, job: a, instance: x}, exp_annotations: {summary: down}"
OUTSIDE = """
  external_labels: {cluster: lab}
  external_url: http://monitor.example:9090/base
"""
OUTSIDE_LABELS = "exp_labels: {cluster: lab, url: 'http://monitor.example:9090/base', job: a, instance: x}"
CASES = {
    "alerts": f"[{{eval_time: 4m, alertname: Down, exp_alerts: [{{{DOWN}}}]}}]",
    "too early": f"[{{eval_time: 3m59s, alertname: Down, exp_alerts: [{{{DOWN}}}]}}]",
    "just early enough": "[{eval_time: 3m59s, alertname: Down, exp_alerts: []}]",
    "wrong label": "[{eval_time: 4m, alertname: Down, exp_alerts: [{exp_labels: {severity: warn}}]}]",
    "kept": "[{eval_time: 11m, alertname: Kept, exp_alerts: [{exp_labels: {job: a, instance: x}}]}]",
    "not kept any longer": "[{eval_time: 12m, alertname: Kept, exp_alerts: []}]",
    "outside": f"[{{eval_time: 3m, alertname: Outside, exp_alerts: [{{{OUTSIDE_LABELS}}}]}}]",
    "unknown alert": "[{eval_time: 1m, alertname: Nothing, exp_alerts: []}]",
}
EXPRESSIONS = {
    "recorded": "{expr: 'job:up:sum', eval_time: 1m, exp_samples: "
    "[{labels: 'job:up:sum{job=\"a\"}', value: 2}]}",
    "wrong value": "{expr: 'job:up:sum', eval_time: 1m, exp_samples: "
    "[{labels: 'job:up:sum{job=\"a\"}', value: 3}]}",
    "order of groups": "{expr: 'sum(job:up:double)', eval_time: 0m, exp_samples: [{labels: '{}', value: 4}]}",
    "stale": "{expr: 'count(up)', eval_time: 7m, exp_samples: [{labels: '{}', value: 1}]}",
    "stale marker of ALERTS": '{expr: \'ALERTS{alertname="Down",alertstate="pending"}\', eval_time: 4m}',
    "between evaluations": "{expr: 'up{instance=\"x\"}', eval_time: 90s, exp_samples: "
    '[{labels: \'up{instance="x",job="a"}\', value: 1}]}',
    "broken": "{expr: 'sum(', eval_time: 0m}",
    "time": "{expr: 'time()', eval_time: 2m, exp_samples: [{labels: '{}', value: 1.79487372e+09}]}",
    "nearly equal": "{expr: 'vector(0.1) + 0.2', eval_time: 0m, exp_samples: [{labels: '{}', value: 0.3}]}",
    "no sample expected": "{expr: 'nothing', eval_time: 0m}",
}
RULE_FILES = {
    "good": RULES,
    "empty": "",
    "no groups": "groups: []",
    "unknown key": "groups: [{name: g, rule: []}]",
    "same name": "groups: [{name: g}, {name: g}]",
    "bad expression": "groups: [{name: g, rules: [{alert: a, expr: 'sum('}]}]",
    "both kinds": "groups: [{name: g, rules: [{alert: a, record: b, expr: up}]}]",
    "for in a recording rule": "groups: [{name: g, rules: [{record: a, expr: up, for: 1m}]}]",
    "braces": "groups: [{name: g, rules: [{record: 'a{b}', expr: up}]}]",
    "name label": "groups: [{name: g, rules: [{record: a, expr: up, labels: {__name__: x}}]}]",
    "duplicates": "groups: [{name: g, rules: [{record: a, expr: up}, {record: a, expr: up}]}]",
    "two documents": "groups: []\n---\ngroups: [",
    "negative for": "groups: [{name: g, rules: [{alert: a, expr: up, for: -5m}]}]",
    "numbers as labels": "groups: [{name: g, rules: [{alert: a, expr: up, labels: {a: 1, b: true}}]}]",
    "not a file of rules": "[1, 2]",
    "empty label name": "groups: [{name: g, rules: [{alert: a, expr: up, labels: {'': x}}]}]",
    "empty annotation name": "groups: [{name: g, rules: [{alert: a, expr: up, annotations: {'': x}}]}]",
    "names with other characters": "groups: [{name: g, rules: [{alert: a, expr: up, labels: {'a.b c': x}}]}]",
    "annotation __name__": "groups: [{name: g, rules: [{alert: a, expr: up, annotations: {__name__: x}}]}]",
    "name label of a group": "groups: [{name: g, labels: {__name__: x}, rules: [{alert: a, expr: up}]}]",
    "template of a group": "groups: [{name: g, labels: {a: '{{ no }}'}, rules: [{alert: a, expr: up}]}]",
    "template of a label": "groups: [{name: g, rules: [{alert: a, expr: up, labels: {a: '{{ no }}'}}]}]",
    "variable": "groups: [{name: g, rules: [{alert: a, expr: up, annotations: {a: '{{ $nope }}'}}]}]",
    "no template in a recording rule": "groups: [{name: g, rules: [{record: a, expr: up, labels: {a: '{{'}}]}]",
    "record with other characters": "groups: [{name: g, rules: [{record: 'a.b c', expr: up}]}]",
    "string": "groups: [{name: g, rules: [{record: a, expr: '\"x\"'}]}]",
    "matrix": "groups: [{name: g, rules: [{record: a, expr: 'up[5m]'}]}]",
    **{
        f"limit {text}": f"groups: [{{name: g, limit: {text}, rules: [{{alert: a, expr: up}}]}}]"
        for text in (
            *(
                "5",
                "'5'",
                '"5"',
                "1.5",
                "5.0",
                "1e1",
                "1.e1",
                ".5",
                "0x10",
                "0o17",
                "0b11",
                "017",
                "09",
                "+5",
                "-3",
            ),
            *(
                "-1.5",
                "1_000",
                "true",
                "x",
                "''",
                "~",
                "9223372036854775807",
                "9223372036854775808",
                "1e30",
                ".inf",
            ),
            *("0x", "1 2", "1:30", "١"),
        )
    },
    "negative limit": "groups: [{name: g, limit: -1, rules: [{alert: a, expr: up}]}]",
    "interval without a unit": "groups: [{name: g, interval: 1, rules: [{alert: a, expr: up}]}]",
    "negative query_offset": "groups: [{name: g, query_offset: -1s, rules: [{alert: a, expr: up}]}]",
    "for: 0s in a recording rule": "groups: [{name: g, rules: [{record: a, expr: up, for: 0s}]}]",
    "empty label": "groups: [{name: g, rules: [{alert: a, expr: up, labels: {a: }}]}]",
    "list as a label": "groups: [{name: g, rules: [{alert: a, expr: up, labels: {a: [1]}}]}]",
    "empty entries": "groups: [null, {name: g, rules: [null]}]",
    "key twice": "groups: [{name: g, name: h, rules: []}]",
    "merge key": "groups: [{name: g, rules: [&a {alert: a, expr: up}, {<<: *a, for: 5m}]}]",
    "alert named true": "groups: [{name: g, rules: [{alert: true, expr: up}]}]",
    "experimental function": "groups: [{name: g, rules: [{alert: a, expr: 'info(up)'}]}]",
}


def promtool() -> Path:
    newest = find_engine("promtool-3.14")
    return newest if isinstance(newest, Path) else engine("promtool")


def verdict(*arguments: str | Path) -> int:
    return subprocess.run([promtool(), *arguments], capture_output=True, timeout=60).returncode


def knows_start_timestamp(folder: Path) -> bool:
    """Debian's 3.5 does not; 3.14 does."""
    path = folder / "start.yml"
    path.write_text("rule_files: []\ntests: [{interval: 1m, start_timestamp: 2026-11-17T00:00:00Z}]\n")
    return verdict("test", "rules", path) == 0


def test_unit_tests_have_promtools_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    order = "group_eval_order: [first, second]"
    head = f"rule_files: [rules.yml]\nevaluation_interval: 1m\n{order}\ntests:\n- interval: 1m"
    tests = {name: f"{head}{SERIES}  alert_rule_test: {case}\n" for name, case in CASES.items()}
    tests |= {name: f"{head}{SERIES}  promql_expr_test: [{case}]\n" for name, case in EXPRESSIONS.items()}
    tests["outside, given"] = f"{head}{OUTSIDE}{SERIES}  alert_rule_test: {CASES['outside']}\n"
    if knows_start_timestamp(tmp_path):
        start = "\n  start_timestamp: 2026-11-17T00:00:00Z\n"
        tests["time, given"] = f"{head}{start}{SERIES}  promql_expr_test: [{EXPRESSIONS['time']}]\n"
    tests["fuzzy"] = f"fuzzy_compare: true\n{tests['nearly equal']}"
    ours, theirs = {}, {}
    for name, text in tests.items():
        path = tmp_path / "test.yml"
        path.write_text(text)
        theirs[name] = verdict("test", "rules", path)
        ours[name] = main(["rules", "test", str(path)])
    assert ours == theirs
    assert set(theirs.values()) == {0, 1}, "some pass and some fail"
    capsys.readouterr()


def test_a_failure_reads_as_promtools(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    path = tmp_path / "test.yml"
    path.write_text(
        f"rule_files: [rules.yml]\ntests:\n- name: n\n  interval: 1m{SERIES}"
        f"  alert_rule_test: {CASES['wrong label']}\n  promql_expr_test: [{EXPRESSIONS['wrong value']}]\n"
    )
    theirs = subprocess.run([promtool(), "test", "rules", path], capture_output=True, text=True, timeout=60)
    assert main(["rules", "test", str(path)]) == theirs.returncode == 1
    ours = capfd.readouterr()
    assert (ours.out, ours.err) == (theirs.stdout, theirs.stderr)


def test_checks_have_promtools_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = {}, {}
    for name, text in RULE_FILES.items():
        path = tmp_path / "rules.yml"
        path.write_text(text)
        for flags in ([], ["--lint-fatal"]):
            theirs[name, *flags] = verdict("check", "rules", *flags, path)
            ours[name, *flags] = main(["rules", "check", *flags, str(path)])
    assert ours == theirs
    assert set(theirs.values()) == {0, 1, 3}
    capsys.readouterr()


def test_list_prints_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(RULES)
    assert main(["rules", "list", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert lines[2].split() == ["first", "alert", "Down", "2m", "severity=page", "up", "==", "0"]
    assert main(["rules", "list", str(tmp_path / "none.yml")]) == 2
    assert main(["rules", "list", "--json", str(path)]) == 0
    assert '"expr": "job:up:sum * 2"' in capsys.readouterr().out
