"""Check, test and list Prometheus rule files, in promtool's formats and with its exit codes.

`check` reads rule files, `test` runs promtool's unit-test files, `list` prints the rules of files.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.output import escape_controls, printable, render_table

if TYPE_CHECKING:
    from gpuscope.judge.rules.alert_templates import TemplateExpander
    from gpuscope.judge.rules.rule_spec import GroupSpec

SETTINGS = ("evaluation_interval",)
USAGE = "gpuscope rules check|test|list FILE… [options]"
EPILOG = """exit codes: 0 ok, 1 a file is wrong or a test fails, 2 wrong usage, 3 a finding with --lint-fatal

examples:
  gpuscope rules check rules/*.yml
  gpuscope rules test rules/tests/*.yml        rule unit tests, as `promtool test rules`
  gpuscope rules list --json rules.yml
"""
FAILED, LINT_FAILED = 1, 3
LINTS = ("all", "duplicate-rules", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("check", "test", "list"), metavar="check|test|list", help="what to do"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="rule files; for `test`: unit-test files")
    parser.add_argument("--lint", choices=LINTS, default="duplicate-rules", help="`check`: further checks")
    parser.add_argument("--lint-fatal", action="store_true", help="lint findings make `check` exit with 3")
    parser.add_argument("--run", metavar="REGEX", default="", help="`test`: only tests whose name matches")
    parser.add_argument("--json", action="store_true", help="`list` as JSON")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Flags may stand between the action and the files."""
    return parser.parse_intermixed_args(argv)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.judge.rules.alert_templates import load_templates

    interval_ns = round(settings.evaluation_interval * 1e9)
    match args.action:
        case "check":
            return _check(args, interval_ns, load_templates())
        case "test":
            return _test(args, load_templates())
        case _:
            return _list(args, interval_ns, load_templates())


def _check(args: argparse.Namespace, interval_ns: int, templates: TemplateExpander) -> int:
    from gpuscope.judge.rules.rule_file import RuleFileError, duplicates_text, find_duplicates, load_rule_file

    has_mistakes = has_findings = False
    for file in args.files:
        print("Checking", escape_controls(file))
        try:
            groups = load_rule_file(file, interval_ns, templates)
        except RuleFileError as error:
            has_mistakes = True
            _complain(error.mistakes)
            continue
        duplicates = find_duplicates(groups) if args.lint != "none" else []
        if duplicates:
            has_findings = True
            _complain([duplicates_text(duplicates)])
        else:
            print(f"  SUCCESS: {sum(len(group.rules) for group in groups)} rules found")
        print(flush=True)
    if has_mistakes:
        return FAILED
    return LINT_FAILED if has_findings and args.lint_fatal else 0


def _complain(lines: Sequence[str]) -> None:
    sys.stdout.flush()
    print("  FAILED:", file=sys.stderr)
    for line in lines:
        print(escape_controls(line, keep="\n\t"), file=sys.stderr)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the log: a failing rule is printed as a failing test."""
    log = logging.getLogger("gpuscope")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _test(args: argparse.Namespace, templates: TemplateExpander) -> int:
    from gpuscope.judge.rules.unit_test_file import load_unit_test_file
    from gpuscope.judge.rules.unit_tests import run_unit_tests

    try:
        re.compile(args.run)
    except re.error as error:
        raise UsageError(f"--run {args.run!r}: not a regular expression: {error}") from None
    has_failures = False
    for path in args.files:
        try:
            file = load_unit_test_file(path)
            for pattern in file.missing_patterns:
                print("  WARNING: no file match pattern", escape_controls(pattern), file=sys.stderr)
            with _quiet():
                failures = run_unit_tests(file, templates, args.run)
        except UsageError as error:
            failures = [str(error)]
        if failures:
            has_failures = True
            _complain(failures)
            print("\n" * (len(failures) - 1))
        else:
            print("  SUCCESS")
        print(flush=True)
    return FAILED if has_failures else 0


def _list(args: argparse.Namespace, interval_ns: int, templates: TemplateExpander) -> int:
    from gpuscope.judge.rules.rule_file import load_rule_set

    groups = load_rule_set(args.files, interval_ns, templates)
    if args.json:
        print(json.dumps([row for group in groups for row in _rows(group)], indent=2))
        return 0
    header = ["GROUP", "TYPE", "NAME", "FOR", "LABELS", "EXPRESSION"]
    rows = [
        [row["group"], row["type"], row["name"], row["for"], _labels_cell(row["labels"]), row["expr"]]
        for group in groups
        for row in _rows(group)
    ]
    print("\n".join(render_table(header, [[printable(str(cell), 100) for cell in row] for row in rows])))
    return 0


def _labels_cell(labels: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in labels.items())


def _rows(group: GroupSpec) -> list[dict[str, Any]]:
    from gpuscope.base.time_text import duration_text

    return [
        {
            "file": group.file,
            "line": rule.line,
            "group": group.name,
            "interval": duration_text(group.interval_ns // 1_000_000),
            "type": "alert" if rule.is_alert else "record",
            "name": rule.name,
            "for": duration_text(rule.for_ns // 1_000_000) if rule.is_alert else "",
            "labels": dict(rule.labels),
            "expr": rule.expression,
        }
        for rule in group.rules
    ]
