"""Look after the history: its numbers, its soundness, a copy of it, or all of it as text.

Works while `gpuscope up` or `gpuscope server` writes to the same folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli.terminal import bytes_text, render_table
from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.settings import Settings

if TYPE_CHECKING:
    from gpuscope.store import Store

SETTINGS = ("data",)

EPILOG = """examples:
  gpuscope store stat
  gpuscope store check                         exit code 1 if something is damaged
  gpuscope store export --match 'gpuscope_gpu_power_watts{gpu="0"}' > power.om
  gpuscope store backup /backups/gpuscope
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("stat", "check", "export", "backup"))
    parser.add_argument("folder", nargs="?", type=Path, help="where `backup` puts the copy")
    parser.add_argument("--match", metavar="SELECTOR", default="", help="which series `export` writes (all)")
    parser.add_argument("--start", metavar="T", help="first time `export` writes: RFC 3339 or seconds")
    parser.add_argument("--end", metavar="T", help="last time `export` writes")
    parser.add_argument("--json", action="store_true", help="`stat` and `check` as JSON")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Flags may stand between the action and its folder."""
    return parser.parse_intermixed_args(argv)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.store import Store, StoreError

    folder = Path(settings.data).expanduser()
    if not folder.is_dir():
        raise UsageError(f"--data: there is no history in {folder}")
    try:
        with Store(folder, read_only=True) as store:
            return {"stat": _stat, "check": _check, "export": _export, "backup": _backup}[args.action](
                store, args
            )
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
        ("bytes a sample", "-" if per_sample is None else f"{per_sample:.2f}"),
        ("sealed blocks", f"{stats.blocks:,} ({stats.merged_blocks:,} merged)"),
        ("damaged chunks", f"{stats.damaged_chunks:,}"),
    ]
    print("\n".join(render_table(("WHAT", "HOW MUCH"), rows)))
    print()
    print("\n".join(render_table(("METRIC", "SERIES"), [(n, f"{c:,}") for n, c in top.by_metric], ("SERIES",))))
    return 0


def _check(store: Store, args: argparse.Namespace) -> int:
    report = store.check()
    if args.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print(f"read {report.blocks:,} blocks, {report.chunks:,} chunks, {report.samples:,} samples")
        for problem in report.problems:
            print(f"problem: {problem}")
        if not report.problems:
            print("all of it is sound")
    return 1 if report.problems else 0


def _export(store: Store, args: argparse.Namespace) -> int:
    from gpuscope.promql import BadQueryError
    from gpuscope.promql.written import parse_selector
    from gpuscope.server.api.go_values import parse_time_ms

    try:
        matchers = parse_selector(args.match) if args.match else ()
    except BadQueryError as error:
        raise UsageError(f"--match {args.match!r}: {error}") from None
    try:
        start = parse_time_ms(args.start) if args.start else None
        end = parse_time_ms(args.end) if args.end else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    for piece in store.export(matchers, start, end):
        sys.stdout.write(piece)
    return 0


def _backup(store: Store, args: argparse.Namespace) -> int:
    if args.folder is None:
        raise UsageError("backup: say where to, for instance `gpuscope store backup /backups/gpuscope`")
    print(store.backup(args.folder))
    return 0
