"""Alert rules that gpuscope ships: written from the rows of `checks/`, and their variants for other exporters.

`rule_files()` gives the text of each file by name; `tools/make_rules.py` writes them to
deploy/prometheus/rules.
"""

from gpuscope.judge.rules.shipped.rule_files import inhibit_rules, rule_files, shipped_groups

__all__ = ["inhibit_rules", "rule_files", "shipped_groups"]
