"""`gpuscope render systemd`: prints or writes the units, or installs and removes them through systemctl."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.cli.output import add_out, write_rendered

if TYPE_CHECKING:
    from gpuscope.serve.render.systemd import UnitPlan

MAX_SECONDS_TO_START = 120.0
MAX_SECONDS_TO_ANSWER = 10.0
POLL_SECONDS = 0.2
PROBE_SECONDS = 2.0
MAX_PROBE_BYTES = 10_000
NO_ANSWER = 0
UNREADY = (NO_ANSWER, HTTPStatus.SERVICE_UNAVAILABLE)

log = logging.getLogger("gpuscope")


def add_systemd_arguments(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.systemd import SHIPPED_TEXTFILE_FOLDER, UNIT_FOLDER, UNITS

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
    from gpuscope.serve.render import systemd

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
    from gpuscope.serve.render import systemd

    program: Path = args.program or systemd.find_program()
    try:
        return systemd.check_program(program)
    except UsageError as error:
        if args.install:
            raise
        log.warning("%s", error)
        return program


def _install_units(args: argparse.Namespace, plan: UnitPlan) -> int:
    from gpuscope.serve.render import systemd, write_files

    if not args.services:
        raise UsageError("--install: name the services, for example `gpuscope render systemd agent --install`")
    _require_root("--install", "run it as root (sudo), or write the files with --out DIR")
    systemd.refuse_foreign_units(args.unit_folder, plan.services)
    version = systemd.parse_systemd_version(_run_command(["systemctl", "--version"]))
    plan = replace(plan, systemd_version=version)
    if "textfile" in plan.services:
        Path(plan.textfile_folder).mkdir(parents=True, exist_ok=True)
    former = systemd.former_units(plan, args.unit_folder)
    if former:
        _remove_units(former)
    for file in write_files(args.unit_folder, systemd.unit_files(plan), force=True):
        print(file.path)
    _run_commands(systemd.install_commands(plan))
    for unit in systemd.service_units(plan):
        print(wait_until_up(unit))
    return 0


def _uninstall_units(args: argparse.Namespace, services: tuple[str, ...]) -> int:
    from gpuscope.serve.render import systemd

    _require_root("--uninstall", "run it as root (sudo)")
    present = systemd.refuse_foreign_units(args.unit_folder, services)
    if not present:
        print(f"no unit of gpuscope in {args.unit_folder}")
        return 0
    written = systemd.written_files(present)
    _remove_units(present)
    for path in written:
        path.unlink(missing_ok=True)
    _run_commands([["systemctl", "daemon-reload"]])
    print("data stays in /var/lib/private/gpuscope-*; remove it by hand if you do not need it")
    return 0


def _remove_units(paths: Sequence[Path]) -> None:
    from gpuscope.serve.render import systemd

    _run_commands(systemd.uninstall_commands(paths))
    for path in paths:
        path.unlink()
        print(f"removed {path}")


def _require_root(flag: str, way: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{flag} changes system units: {way}")


def _run_commands(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        print("+", " ".join(command))
        _run_command(command)


def _run_command(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise GpuscopeError(f"{command[0]} is not installed; this machine does not use systemd") from None
    if done.returncode:
        raise GpuscopeError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def wait_until_up(unit: str) -> str:
    """What to tell the user about a service that runs. Raises GpuscopeError with its last lines if it ended."""
    deadline = time.monotonic() + MAX_SECONDS_TO_START
    while True:
        shown = _show(unit)
        if shown.get("ActiveState") == "active":
            return f"{unit} runs{_answer(shown.get('StatusText', ''))}"
        has_ended = shown.get("ActiveState") == "failed" or shown.get("SubState") == "auto-restart"
        if has_ended or time.monotonic() > deadline:
            what = "ended" if has_ended else f"did not start within {MAX_SECONDS_TO_START:.0f} s"
            raise GpuscopeError(
                f"{unit} {what}. Its last lines:\n{_last_lines(unit)}\n"
                f"Mend this, then: systemctl reset-failed {unit}; systemctl restart {unit}"
            )
        time.sleep(POLL_SECONDS)


def _show(unit: str) -> dict[str, str]:
    properties = "ActiveState,SubState,StatusText"
    lines = _run_command(["systemctl", "show", unit, "--property", properties]).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _last_lines(unit: str) -> str:
    """Of the service itself: systemd's own lines only say that it ended."""
    command = ["journalctl", f"_SYSTEMD_UNIT={unit}", "-n", "10", "--output", "cat", "--no-pager"]
    try:
        lines = _run_command(command).strip()
    except GpuscopeError as error:
        return str(error)
    return lines or f"none; see journalctl -u {unit}"


def _answer(status: str) -> str:
    """Whether it is ready, by its own probe at the address of the status text."""
    from gpuscope.cli.wiring.service_manager import READY_STATUS

    if not status.startswith(READY_STATUS):
        return ""
    url = status.removeprefix(READY_STATUS).split()[0]
    deadline = time.monotonic() + MAX_SECONDS_TO_ANSWER
    while (answer := _probe(f"{url}/-/ready"))[0] in UNREADY and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    code, text = answer
    if code == NO_ANSWER:
        raise GpuscopeError(f"the service runs, but {url} does not answer: {text}")
    return f" at {url}, but is not ready: {text}" if code in UNREADY else f" and answers at {url}"


def _probe(url: str) -> tuple[int, str]:
    """Status and text, or NO_ANSWER and the reason."""
    import ssl

    from gpuscope.base.blocking_http import BlockingHttp, HttpAddress

    parts = urlsplit(url)
    # The certificate names the machine as its users do, not the address that is asked here.
    tls = ssl._create_unverified_context() if parts.scheme == "https" else None  # noqa: S323
    address = HttpAddress(host=parts.hostname or "", port=parts.port or 0, tls=tls, host_header=parts.netloc)
    try:
        with BlockingHttp(address, timeout_seconds=PROBE_SECONDS, max_body_bytes=MAX_PROBE_BYTES) as http:
            answer = http.request("GET", parts.path)
    except OSError as error:
        return NO_ANSWER, str(error)
    return answer.status, answer.body.decode("utf-8", "replace").strip()
