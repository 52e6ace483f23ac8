"""Look after the history: its numbers, its soundness, a copy of it, all of it as text, or less of it.

All but `delete` works while `gpuscope up` or `gpuscope server` writes to the same folder; those delete series
themselves when they are started with --admin-api and asked as Prometheus is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli import EVERY_SETTING
from gpuscope.cli.terminal import bytes_text, escape_controls, printable, render_table
from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.settings import Settings, home_path

if TYPE_CHECKING:
    from gpuscope.series import Matcher
    from gpuscope.store import Store

SETTINGS = EVERY_SETTING
COMMON = ("data",)
USAGE = "gpuscope store stat|check|export|backup|delete [options]"

EPILOG = """examples:
  gpuscope store stat
  gpuscope store check                         exit code 1 if something is damaged
  gpuscope store export --match 'gpuscope_gpu_power_watts{gpu="0"}' > power.om
  gpuscope store backup /backups/gpuscope
  gpuscope store delete --match '{instance="gone:9400"}' --end 2026-01-31T00:00:00Z
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("stat", "check", "export", "backup", "delete"))
    parser.add_argument("folder", nargs="?", type=Path, help="where `backup` puts the copy")
    parser.add_argument(
        "--match",
        metavar="SELECTOR",
        default="",
        help="which series `export` writes (all), or `delete` deletes",
    )
    parser.add_argument("--start", metavar="T", help="first time it does so: RFC 3339 or seconds")
    parser.add_argument("--end", metavar="T", help="last time it does so")
    parser.add_argument("--yes", action="store_true", help="`delete` without asking")
    parser.add_argument("--json", action="store_true", help="`stat` and `check` as JSON")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Flags may stand between the action and its folder."""
    return parser.parse_intermixed_args(argv)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.store import Store, StoreError, StoreLockedError

    folder = home_path(settings.data, "data")
    if not folder.is_dir():
        raise UsageError(f"--data: there is no history in {folder}")
    try:
        with Store(folder, read_only=args.action != "delete") as store:
            return ACTIONS[args.action](store, args)
    except StoreLockedError as error:
        raise GpuscopeError(
            f"{error}; or start that one with --admin-api and POST to its /api/v1/admin/tsdb/delete_series"
        ) from None
    except StoreError as error:
        raise GpuscopeError(f"{folder}: {error}") from None


def _time_text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _stat(store: Store, args: argparse.Namespace) -> int:
    stats, top = store.stats(), store.cardinality(10)
    if args.json:
        print(json.dumps({**asdict(stats), "by_metric": dict(top.by_metric)}, indent=2))
        return 0
    per_sample = stats.bytes_per_sample
    rows = [
        ("samples", f"{stats.block_samples + stats.head_samples:,}"),
        ("series", f"{stats.series:,}"),
        ("targets", f"{stats.targets:,}"),
        ("from", _time_text(stats.oldest_ms)),
        ("to", _time_text(stats.newest_ms)),
        ("file", bytes_text(stats.file_bytes)),
        ("folder on disk", bytes_text(stats.disk_bytes)),
        ("bytes a sample", "-" if per_sample is None else f"{per_sample:.2f}"),
        ("sealed blocks", f"{stats.blocks:,} ({stats.merged_blocks:,} merged)"),
        ("damaged chunks", f"{stats.damaged_chunks:,}"),
    ]
    print("\n".join(render_table(("WHAT", "HOW MUCH"), rows)))
    print()
    print(
        "\n".join(
            render_table(
                ("METRIC", "SERIES"), [(printable(n), f"{c:,}") for n, c in top.by_metric], ("SERIES",)
            )
        )
    )
    return 0


def _check(store: Store, args: argparse.Namespace) -> int:
    report = store.check()
    if args.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print(
            f"read {report.samples:,} samples in {report.blocks:,} blocks ({report.chunks:,} chunks) "
            f"and {report.head_samples:,} samples not sealed yet"
        )
        for problem in report.problems:
            print(f"problem: {escape_controls(str(problem))}")
        if not report.problems:
            print("all of it is sound")
    return 1 if report.problems else 0


def _chosen(args: argparse.Namespace) -> tuple[Sequence[Matcher], int | None, int | None]:
    """What --match, --start and --end say."""
    from gpuscope.promql import BadQueryError
    from gpuscope.promql.ast_json import parse_selector
    from gpuscope.server.api.go_values import parse_time_ms

    try:
        matchers = parse_selector(args.match) if args.match else ()
    except BadQueryError as error:
        raise UsageError(f"--match {args.match!r}: {error}") from None
    try:
        start, end = (parse_time_ms(text) if text else None for text in (args.start, args.end))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return matchers, start, end


def _export(store: Store, args: argparse.Namespace) -> int:
    # As it is into a file, which may be read back; a terminal would carry out what labels hold.
    is_seen = sys.stdout.isatty()
    for piece in store.export(*_chosen(args)):
        sys.stdout.write(escape_controls(piece, keep="\n") if is_seen else piece)
    return 0


def _backup(store: Store, args: argparse.Namespace) -> int:
    if args.folder is None:
        raise UsageError("backup: say where to, for instance `gpuscope store backup /backups/gpuscope`")
    print(store.backup(args.folder))
    return 0


def _delete(store: Store, args: argparse.Namespace) -> int:
    if not args.match:
        raise UsageError("delete: say which series, for instance --match '{instance=\"gone:9400\"}'")
    matchers, start, end = _chosen(args)
    found = store.series(matchers, start, end)
    if not found:
        print("no series; nothing was deleted")
        return 0
    if not args.yes and not _agreed(f"{len(found):,} series of {args.match}, {_span_text(start, end)}"):
        print("nothing was deleted")
        return 1
    store.delete_series(matchers, start, end)
    store.compact()
    print(f"deleted samples of {len(found):,} series")
    return 0


def _span_text(start: int | None, end: int | None) -> str:
    if start is None and end is None:
        return "all of their samples"
    begin = "the beginning" if start is None else _time_text(start)
    return f"from {begin} to {'the end' if end is None else _time_text(end)}"


def _agreed(what: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"delete: {what}: standard input is not a terminal; pass --yes to confirm")
    return input(f"Delete {what}? [y/N] ").strip().lower() in ("y", "yes")


ACTIONS: dict[str, Callable[[Store, argparse.Namespace], int]] = {
    "stat": _stat,
    "check": _check,
    "export": _export,
    "backup": _backup,
    "delete": _delete,
}
