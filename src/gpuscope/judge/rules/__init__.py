"""Prometheus' rule engine: rule files, groups, alert state, and the alerts that are sent.

    load_rule_set(files, …) -> tuple[GroupSpec, …]     refuses a set with one mistake as a whole
    RuleRunner(specs, environment).run_due()           evaluates every group on Prometheus' own schedule

The semantics are those of Prometheus 3.14. Nothing here opens a socket: queries, samples and alerts go through
the protocols of `interfaces` and `alert`.
"""
