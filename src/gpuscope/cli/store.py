"""Manage the history: show statistics, check it, export it as text, back it up, delete series.

All actions but `delete` work while `gpuscope up` or `gpuscope server` writes to the same folder. A running
server started with --admin-api deletes series through Prometheus' admin API.
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

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.files import PRIVATE, write_atomically
from gpuscope.base.settings import Settings, home_path
from gpuscope.cli import EVERY_SETTING
from gpuscope.cli.output import bytes_text, escape_controls, printable, render_table

if TYPE_CHECKING:
    from gpuscope.history.store import Store
    from gpuscope.model.series import Matcher

SETTINGS = EVERY_SETTING
COMMON = ("data",)
SMALL_FILES = ("kind", "[!.]*.json", "idle_policy_audit.jsonl*", "audit.log*", "digest_sent.txt")
OTHER_DATABASES = ("notifications.sqlite",)
USAGE = "gpuscope store stat|check|export|backup|delete [options]"

EPILOG = """examples:
  gpuscope store stat
  gpuscope store check                         exit code 1 if data is damaged
  gpuscope store export --match 'gpuscope_gpu_power_watts{gpu="0"}' > power.om
  gpuscope store backup /backups/gpuscope
  gpuscope store delete --match '{instance="gone:9400"}' --end 2026-01-31T00:00:00Z
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = ("stat", "check", "export", "backup", "delete")
    parser.add_argument("action", choices=actions, metavar="|".join(actions), help="what to do")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="destination folder of `backup`, for the history, users, tokens, silences and alert states",
    )
    parser.add_argument(
        "--match",
        metavar="SELECTOR",
        default="",
        help="series to export (default: all) or to delete",
    )
    parser.add_argument(
        "--start", metavar="T", help="start time for `export` and `delete`: RFC 3339 or Unix seconds"
    )
    parser.add_argument("--end", metavar="T", help="end time for `export` and `delete`")
    parser.add_argument("--yes", action="store_true", help="`delete` without confirmation")
    parser.add_argument("--json", action="store_true", help="print `stat` and `check` as JSON")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Flags may appear between the action and the folder."""
    return parser.parse_intermixed_args(argv)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.history.store import Store, StoreError, StoreLockedError

    folder = home_path(settings.data, "data")
    try:
        is_folder = folder.is_dir()
    except PermissionError:  # a systemd unit's folder belongs to its user
        raise UsageError(f"--data: no permission to read {folder}; run the command with sudo") from None
    if not is_folder:
        raise UsageError(f"--data: there is no history in {folder}")
    args.data_folder = folder
    try:
        with Store(folder, read_only=args.action != "delete") as store:
            return ACTIONS[args.action](store, args)
    except StoreLockedError as error:
        raise UsageError(
            f"--data: {error}; or start that process with --admin-api and POST to "
            "/api/v1/admin/tsdb/delete_series"
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
            print("no damage found")
    return 1 if report.problems else 0


def _parse_selection(args: argparse.Namespace) -> tuple[Sequence[Matcher], int | None, int | None]:
    """Parses --match, --start and --end."""
    from gpuscope.history.promql import BadQueryError
    from gpuscope.history.promql.ast_json import parse_selector
    from gpuscope.serve.api.parameters import parse_time_ms

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
    # Escape only on a terminal, where labels could contain control sequences; a file may be imported again.
    is_terminal = sys.stdout.isatty()
    for piece in store.export(*_parse_selection(args)):
        sys.stdout.write(escape_controls(piece, keep="\n") if is_terminal else piece)
    return 0


def _backup(store: Store, args: argparse.Namespace) -> int:
    from gpuscope.history.store.inspection import copy_database

    if args.folder is None:
        raise UsageError(
            "backup: a destination folder is required, for example `gpuscope store backup /backups/gpuscope`"
        )
    print(store.backup(args.folder))
    for name in OTHER_DATABASES:
        if (args.data_folder / name).is_file():
            copy_database(args.data_folder / name, args.folder / name)
    for path in _small_files(args.data_folder):
        write_atomically(args.folder / path.name, path.read_bytes(), mode=PRIVATE)
    return 0


def _small_files(folder: Path) -> list[Path]:
    """Users, tokens, alert states. Each is replaced as a whole: a copy is never half of one.

    By name, because a data folder may hold other files too.
    """
    return [path for pattern in SMALL_FILES for path in folder.glob(pattern) if path.is_file()]


def _delete(store: Store, args: argparse.Namespace) -> int:
    if not args.match:
        raise UsageError("delete: --match is required, for example --match '{instance=\"gone:9400\"}'")
    matchers, start, end = _parse_selection(args)
    series = store.series(matchers, start, end)
    if not series:
        print("no matching series; nothing was deleted")
        return 0
    if not args.yes and not _confirm(f"{len(series):,} series of {args.match}, {_span_text(start, end)}"):
        print("nothing was deleted")
        return 1
    store.delete_series(matchers, start, end)
    store.compact()
    print(f"deleted samples of {len(series):,} series")
    return 0


def _span_text(start: int | None, end: int | None) -> str:
    if start is None and end is None:
        return "all samples"
    begin = "the beginning" if start is None else _time_text(start)
    return f"from {begin} to {'the end' if end is None else _time_text(end)}"


def _confirm(what: str) -> bool:
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
