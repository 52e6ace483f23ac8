"""`gpuscope up` evaluates the shipped groups; a user's group of the same name replaces one."""

from __future__ import annotations

import re
from pathlib import Path

from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.rule_file import load_rule_file, with_default_groups

ROOT = Path(__file__).parents[2]
MINUTE_NS = 60_000_000_000
DEFAULT = [
    "gpuscope-node", "gpuscope-node-slow", "gpuscope-gpu", "gpuscope-gpu-slow", "gpuscope-use",
    "gpuscope-use-slow", "gpuscope-slurm", "gpuscope-slurm-slow", "gpuscope-service",
]  # fmt: skip


def test_the_default_groups_are_those_of_gpuscope_s_own_metrics() -> None:
    groups = with_default_groups((), MINUTE_NS, load_templates())
    assert [group.name for group in groups] == DEFAULT
    assert sum(len(group.rules) for group in groups) >= 59


def test_every_metric_of_the_gpu_node_and_slurm_rules_exists() -> None:
    known = (ROOT / "docs/metrics.md").read_text() + (ROOT / "tests/golden/host/gpu-server.metrics").read_text()
    rules = [rule for group in with_default_groups((), MINUTE_NS, load_templates()) for rule in group.rules]
    names = {name for rule in rules for name in re.findall(r"\b(?:gpuscope|node)_\w+", rule.expression)}
    stored = {name for name in names if not name.startswith("gpuscope_store_")}  # the server's own
    assert len(stored) > 50
    assert {name for name in stored if not re.search(rf"\b{name}\b", known)} == set()


def test_a_group_of_the_same_name_replaces_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "own.yml"
    file.write_text("groups: [{name: gpuscope-use, rules: []}, {name: more, rules: []}]\n")
    own = load_rule_file(str(file), MINUTE_NS, load_templates())
    groups = with_default_groups(own, MINUTE_NS, load_templates())
    assert [group.name for group in groups].count("gpuscope-use") == 1
    assert [len(group.rules) for group in groups if group.name == "gpuscope-use"] == [0]
    assert {group.name for group in groups} == {*DEFAULT, "more"} - {"gpuscope-use-slow"}


def test_a_group_is_replaced_with_its_slow_part(tmp_path: Path) -> None:
    """Whoever writes the alerts about nodes anew does not want `HostDown` of both."""
    file = tmp_path / "own.yml"
    file.write_text("groups: [{name: gpuscope-node, rules: []}, {name: gpuscope-gpu-slow, rules: []}]\n")
    own = load_rule_file(str(file), MINUTE_NS, load_templates())
    groups = with_default_groups(own, MINUTE_NS, load_templates())
    assert "gpuscope-node-slow" not in {group.name for group in groups}
    assert [len(group.rules) for group in groups if group.name == "gpuscope-gpu-slow"] == [0]
    assert "gpuscope-gpu" in {group.name for group in groups}


def test_the_runbook_of_an_alert_is_the_server_s_own_page() -> None:
    for group in with_default_groups((), MINUTE_NS, load_templates()):
        for rule in group.rules:
            assert dict(rule.annotations)["runbook_url"] == f"{{{{ externalURL }}}}/explain/alert/{rule.name}"
