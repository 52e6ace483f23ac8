"""`gpuscope render systemd`: prints or writes the units, or installs and removes them through systemctl."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli.render_output import add_out, write_rendered
from gpuscope.errors import GpuscopeError, UsageError

if TYPE_CHECKING:
    from gpuscope.render.systemd import UnitPlan

log = logging.getLogger("gpuscope")


def add_systemd_arguments(parser: argparse.ArgumentParser) -> None:
    from gpuscope.render.systemd import SHIPPED_TEXTFILE_FOLDER, UNIT_FOLDER, UNITS

    parser.add_argument(
        "services",
        nargs="*",
        metavar="SERVICE",
        help=f"{', '.join(UNITS)} (default: all; --install needs a choice)",
    )
    parser.add_argument("--program", metavar="PATH", type=Path, help="the gpuscope to run (default: this one)")
    parser.add_argument(
        "--textfile-folder",
        metavar="DIR",
        default=SHIPPED_TEXTFILE_FOLDER,
        help=f"folder of node_exporter's textfile collector ({SHIPPED_TEXTFILE_FOLDER})",
    )
    parser.add_argument(
        "--unit-folder",
        metavar="DIR",
        type=Path,
        default=UNIT_FOLDER,
        help=f"folder of the units ({UNIT_FOLDER})",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--install", action="store_true", help="write the units, enable and start them")
    action.add_argument(
        "--uninstall", action="store_true", help="stop and disable the units, remove their files"
    )
    add_out(parser, required=False)


def run_systemd(args: argparse.Namespace) -> int:
    from gpuscope.render import systemd

    services = systemd.parse_services(args.services)
    if args.uninstall:
        return _uninstall_units(args, services)
    plan = systemd.UnitPlan(
        services=services,
        program=_program(args),
        textfile_folder=systemd.parse_textfile_folder(args.textfile_folder),
    )
    if args.install:
        return _install_units(args, plan)
    files = systemd.unit_files(plan)
    if args.out is not None:
        write_rendered(args, files)
    else:
        for file in files:
            print(f"# {file.path}\n{file.content}")
    return 0


def _program(args: argparse.Namespace) -> Path:
    """Checked strictly with --install; otherwise the files may be for another machine."""
    from gpuscope.render import systemd

    program: Path = args.program or systemd.find_program()
    try:
        return systemd.check_program(program)
    except UsageError as error:
        if args.install:
            raise
        log.warning("%s", error)
        return program


def _install_units(args: argparse.Namespace, plan: UnitPlan) -> int:
    from gpuscope.render import systemd, write_files

    if not args.services:
        raise UsageError("--install: name the services, for example `gpuscope render systemd agent --install`")
    _require_root("--install", "run it as root (sudo), or write the files with --out DIR")
    systemd.refuse_foreign_units(args.unit_folder, plan.services)
    if "textfile" in plan.services:
        Path(plan.textfile_folder).mkdir(parents=True, exist_ok=True)
    for file in write_files(args.unit_folder, systemd.unit_files(plan), force=True):
        print(file.path)
    _run_commands(systemd.install_commands(plan))
    return 0


def _uninstall_units(args: argparse.Namespace, services: tuple[str, ...]) -> int:
    from gpuscope.render import systemd

    _require_root("--uninstall", "run it as root (sudo)")
    present = systemd.refuse_foreign_units(args.unit_folder, services)
    if not present:
        print(f"no unit of gpuscope in {args.unit_folder}")
        return 0
    installed = tuple(s for s in services if any(path.name in systemd.UNITS[s] for path in present))
    _run_commands(systemd.uninstall_commands(installed))
    for path in present:
        path.unlink()
        print(f"removed {path}")
    _run_commands([["systemctl", "daemon-reload"]])
    print("data stays in /var/lib/private/gpuscope-*; remove it by hand if you do not need it")
    return 0


def _require_root(flag: str, way: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{flag} changes system units: {way}")


def _run_commands(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        print("+", " ".join(command))
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise GpuscopeError(f"{command[0]} is not installed; this machine does not use systemd") from None
        if done.returncode:
            raise GpuscopeError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
