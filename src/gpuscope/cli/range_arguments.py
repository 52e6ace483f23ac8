"""The options --since and --until of `report`, `findings` and `job`, and the range that they name."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from gpuscope.base.settings import Settings

if TYPE_CHECKING:
    from gpuscope.judge.reports.report_range import ReportRange


def add_range_arguments(
    parser: argparse.ArgumentParser, default: str | None, since: str = "where the range begins"
) -> None:
    parser.add_argument(
        "--since",
        metavar="7d",
        default=default,
        help=f"{since}: a duration before now, a date (2026-10, 2026-10-01), a time (2026-10-01T08:00), today, "
        "yesterday, this or last week, month, year" + (f" ({default})" if default else ""),
    )
    parser.add_argument(
        "--until",
        metavar="1d",
        help="where it ends, written as --since; a date is the beginning of its day or month (now)",
    )


def asked_range(args: argparse.Namespace, settings: Settings) -> ReportRange:
    from gpuscope.judge.reports.report_range import parse_range

    flags = "--since", "--until"
    return parse_range(args.since, args.until or "", time.time(), settings.time_zone, flags)
