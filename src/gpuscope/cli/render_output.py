"""The flags --out and --force of `gpuscope render`, and the writing of its files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope.serve.render import RenderedFile


def add_out(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=required, help="folder to write the files to"
    )
    parser.add_argument("--force", action="store_true", help="replace files that have other content")


def write_rendered(args: argparse.Namespace, files: Sequence[RenderedFile]) -> None:
    """Writes to --out and prints the paths."""
    from gpuscope.serve.render import write_files

    for file in write_files(args.out, files, force=args.force):
        print(f"{file.path} (kept as it was)" if file.is_kept else file.path)
