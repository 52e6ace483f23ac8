"""Checks of the files for alerts: whether the rule files and the alerting file of the settings can be used.

Returns a result only for files that are set. A mistake has the file, the line and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_path
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict

MAX_MISTAKES: Final = 10
MINUTE_NS: Final = 60 * 10**9


def alerting_file(context: DoctorContext) -> Iterator[CheckResult]:
    from gpuscope.judge.notify.alerting_config import load_alerting

    if not context.settings.alerting:
        return
    path = home_path(context.settings.alerting, "alerting")
    try:
        config = load_alerting(path)
    except UsageError as error:
        yield CheckResult(Verdict.BAD, f"the alerting file cannot be used: {error}", "correct that line")
    else:
        yield CheckResult(Verdict.GOOD, f"{path} is valid: {len(config.receivers)} receivers")


def rule_files(context: DoctorContext) -> Iterator[CheckResult]:
    from gpuscope.judge.rules.alert_templates import load_templates
    from gpuscope.judge.rules.rule_file import RuleFileError, load_rule_set

    try:
        files = _find_rule_files(context.settings)
        groups = load_rule_set(files, MINUTE_NS, load_templates())
    except RuleFileError as error:
        for mistake in error.mistakes[:MAX_MISTAKES]:
            yield CheckResult(Verdict.BAD, f"the rule files cannot be used: {mistake}", "correct that line")
    except UsageError as error:
        yield CheckResult(Verdict.BAD, f"the rule files cannot be read: {error}", "correct the path")
    else:
        if files:
            rules = sum(len(group.rules) for group in groups)
            yield CheckResult(Verdict.GOOD, f"{len(files)} rule files are valid: {rules} rules")


def _find_rule_files(settings: Settings) -> list[str]:
    from gpuscope.history.scrape.config import load_config
    from gpuscope.judge.rules.rule_file import RuleFiles

    patterns = tuple(str(home_path(rule, "rules")) for rule in settings.rules)
    found = RuleFiles(patterns, "--rules").find()
    if settings.config:
        found += RuleFiles(load_config(home_path(settings.config, "config"), settings).rule_files).find()
    return list(dict.fromkeys(found))


CHECKS = (alerting_file, rule_files)
