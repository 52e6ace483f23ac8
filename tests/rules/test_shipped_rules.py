"""The shipped rules: in sync with the checks, tested, over metrics that exist, accepted by the real tools."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.families import load_family
from gpuscope.agent.families.native.table import NATIVE_METRICS
from gpuscope.history.promql.parse import parse
from gpuscope.judge.checks.check import SLOW_SECONDS, Check
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.rules.shipped import inhibit_rules, rule_files, shipped_groups
from gpuscope.judge.rules.templates import ALERT_PRELUDE, prometheus_functions
from gpuscope.judge.rules.templates import parse as parse_template
from tests.engines import engine
from tests.fast_yaml import read_yaml
from tests.recordings import recording
from tools.make_rules import PROMETHEUS, STATIC_FILES, deployed_files

ROOT = PROMETHEUS.parent.parent
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
TEST_FILES = sorted((PROMETHEUS / "tests").glob("*.yml"))


GENERATED = deployed_files()


@cache
def read_file(path: Path) -> Any:
    return read_yaml(path.read_text())


def rules_of_text(text: str) -> list[dict[str, Any]]:
    return [rule for group in read_yaml(text)["groups"] for rule in group["rules"]]


def rules_of(path: Path) -> list[dict[str, Any]]:
    return [rule for group in read_file(path)["groups"] for rule in group["rules"]]


ALERT_FILES = [path for path in RULE_FILES if all("alert" in rule for rule in rules_of(path))]
ROLLUPS = PROMETHEUS / "rules/gpuscope-rollups.yml"


@pytest.mark.parametrize("path", GENERATED, ids=str)
def test_a_generated_file_is_what_the_rows_say(path: Path) -> None:
    assert (PROMETHEUS / path).read_text() == GENERATED[path], "run `make docs`"


def test_there_is_no_other_file() -> None:
    static = {Path("rules") / name for name, _, _ in STATIC_FILES}
    static |= {Path("tests") / name.replace(".yml", ".test.yml") for name, _, _ in STATIC_FILES}
    found = {path.relative_to(PROMETHEUS) for path in (*RULE_FILES, *TEST_FILES)}
    assert found == {path for path in GENERATED if path.parent.name} | static
    for name, count, _ in STATIC_FILES:
        assert len(rules_of(PROMETHEUS / "rules" / name)) == count


def test_every_check_is_shipped_once() -> None:
    shipped = Counter(rule.check.kind for group in shipped_groups() if group.is_default for rule in group.rules)
    assert set(shipped.values()) == {1}
    assert set(shipped) == {*CHECKS, "watchdog"}


@pytest.mark.parametrize(
    "path", [path for path in ALERT_FILES if path.name != "gpu-sessions.yml"], ids=lambda path: path.stem
)
def test_rules_that_nobody_must_act_on_soon_or_that_read_much_are_evaluated_once_a_minute(path: Path) -> None:
    for group in read_file(path)["groups"]:
        for rule in group["rules"]:
            reads_much = re.search(r"\[(1d|6h|3h|1h|40m|30m)", rule["expr"]) is not None
            is_slow = reads_much or rule.get("labels", {}).get("severity") == "info"
            assert group.get("interval") == ("1m" if is_slow else None), rule["alert"]


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.kind)
def test_a_rule_is_not_evaluated_more_often_than_its_check(check: Check) -> None:
    (interval,) = (
        group.get("interval")
        for path in ALERT_FILES
        if path.name.startswith("gpuscope-")
        for group in read_file(path)["groups"]
        if check.alert in [rule["alert"] for rule in group["rules"]]
    )
    assert interval == "1m" or check.every_seconds < SLOW_SECONDS


def test_an_alert_names_no_runbook_that_does_not_open() -> None:
    for path in ALERT_FILES:
        assert "runbook_url" not in path.read_text(), path
    (rule, *_) = rules_of_text(rule_files("http://gpus.example.org:9470")["gpuscope-use.yml"])
    assert rule["annotations"]["runbook_url"] == "http://gpus.example.org:9470/explain/alert/GpuHung"


def test_a_host_that_is_down_is_one_of_the_exporter_s_own_jobs() -> None:
    for group in shipped_groups():
        for rule in group.rules:
            assert rule.expression != "up == 0", group.name


def test_one_xid_79_is_one_critical() -> None:
    """A lost GPU explains its XID, the driver's verdict and the count; by then both alerts are there."""
    inhibited = {
        target for source, targets, _ in inhibit_rules() if source == "GpuNotAnswering" for target in targets
    }
    assert {"XidHardware", "GpuRecoveryAction", "GpuCountDropped"} <= inhibited
    assert CHECKS["xid_hardware"].for_seconds >= CHECKS["gpu_lost"].for_seconds


def test_files_have_alerts_only_or_are_the_rollups() -> None:
    assert set(RULE_FILES) - set(ALERT_FILES) == {ROLLUPS}


@pytest.mark.parametrize("path", ALERT_FILES, ids=lambda path: path.stem)
def test_every_rule_has_a_firing_and_a_quiet_test(path: Path) -> None:
    files = [
        file for file in TEST_FILES if file.name in (f"{path.stem}.test.yml", f"{path.stem}-long.test.yml")
    ]
    fires: set[str] = set()
    quiet: set[str] = set()
    for test in (test for file in files for test in read_file(file)["tests"]):
        for one in test["alert_rule_test"]:
            (fires if one["exp_alerts"] else quiet).add(one["alertname"])
    alerts = {rule["alert"] for rule in rules_of(path)}
    assert fires == alerts
    assert quiet | {"Watchdog"} == alerts | {"Watchdog"}


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_expressions_and_templates_are_understood_here(path: Path) -> None:
    for rule in rules_of(path):
        parse(rule["expr"])
        for text in (*rule.get("labels", {}).values(), *rule.get("annotations", {}).values()):
            parse_template(ALERT_PRELUDE + text, f"__alert_{rule.get('alert')}", prometheus_functions())


@cache
def known_metrics() -> set[str]:
    """Names in the catalogue, and those that the program gives about itself."""
    sources = "\n".join(
        path.read_text()
        for folder in ("serve", "agent/families", "vendors")
        for path in (ROOT / "src/gpuscope" / folder).rglob("*.py")
    )
    return {row.name for row in NATIVE_METRICS} | set(
        re.findall(r"\b(?:gpuscope|node|nvidia_smi)_\w+|DCGM_\w+", sources)
    )


OF_OTHERS = re.compile("slurm_|prometheus_|alertmanager_|api_http_|up$|gpu_|node_(timex|textfile)_")
"""Of Slurm's exporter, Prometheus itself, users' programs, family `sessions`, or of node_exporter alone."""
GOLDENS = "\n".join(
    path.read_text() for path in (ROOT / "tests/golden").rglob("*") if path.suffix in (".prom", ".metrics")
)
SMI_NAMES = (ROOT / "src/gpuscope/vendors/nvidia/families/nvidia_smi/naming.py").read_text()


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_every_metric_of_a_rule_exists(path: Path) -> None:
    known = known_metrics()
    for rule in rules_of(path):
        bare = re.sub(r'"[^"]*"|\b(by|on|ignoring|without)\s*\([^)]*\)|\[[^\]]*\]', "", rule["expr"])
        for name in re.findall(r"\b(?:gpuscope|node|nvidia_smi|DCGM|slurm|prometheus|gpu)_\w+", bare):
            is_own = name.startswith("nvidia_smi_") and f'"{name.removeprefix("nvidia_smi_")}"' in SMI_NAMES
            is_known = name in known or OF_OTHERS.match(name) or f"\n{name}{{" in GOLDENS or is_own
            assert is_known, f"{rule.get('alert') or rule['record']}: {name}"


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_a_join_survives_an_agent_that_two_jobs_scrape(path: Path) -> None:
    """Two series of each GPU: the side of `group_left` that must be unique has to be aggregated."""
    for rule in rules_of(path):
        expression = " ".join(rule["expr"].split())
        for unique_side in re.findall(r"group_left ?\([^)]*\) (?:[\d.]+ \* )?(.*)", expression):
            assert re.match(r"\(?(max|min|sum|count|avg|quantile|topk) by ", unique_side), (
                rule,
                unique_side[:80],
            )


def test_the_users_own_alerts_are_there_word_for_word() -> None:
    assert load_family("sessions")
    seed = recording("seeds/000_*")
    rules = (PROMETHEUS / "rules/instances.yml").read_text()
    for alert in seed.read_text("utf-8", "replace").split("- alert: ")[1:]:
        for line in alert.split("```")[0].splitlines():
            if line.strip() and not line.strip().startswith("#"):
                assert line.strip() in rules, line


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_a_matcher_is_cheap_to_parse(path: Path) -> None:
    """Prometheus parses a rule at each evaluation, and lists the characters of each class in a matcher."""
    for rule in rules_of(path):
        assert not [matcher for matcher in re.findall(r'[!=]~"([^"]*)"', rule["expr"]) if "[^" in matcher]


def test_inhibition_names_alerts_that_exist() -> None:
    alerts = {check.alert for check in CHECKS.values()}
    for source, targets, equal in inhibit_rules():
        assert source in alerts
        assert set(targets) <= alerts
        assert source not in targets
        assert "instance" in equal or source in ("SlurmDown", "StoreTrouble")


@pytest.mark.engine("promtool")
def test_promtool_accepts_the_files_and_their_unit_tests_pass() -> None:
    promtool = engine("promtool")
    for command, files in ((["check", "rules"], RULE_FILES), (["test", "rules"], TEST_FILES)):
        run = subprocess.run([promtool, *command, *files], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.engine("promtool")
def test_a_wrong_expectation_fails_its_unit_test(tmp_path: Path) -> None:
    text = (PROMETHEUS / "tests/gpuscope-use.test.yml").read_text()
    text = text.replace("../rules", str(PROMETHEUS / "rules")).replace("alice (pod ml/train)", "bob", 1)
    (tmp_path / "wrong.yml").write_text(text)
    run = subprocess.run(
        [engine("promtool"), "test", "rules", "--run", "OrphanMemory", tmp_path / "wrong.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "OrphanMemory" in run.stdout + run.stderr


@pytest.mark.engine("amtool")
def test_alertmanager_accepts_its_file() -> None:
    command = [str(engine("amtool")), "check-config", str(PROMETHEUS / "alertmanager.yml")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
