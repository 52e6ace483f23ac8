"""systemd units for agent, up, server and textfile, with this machine's path of `gpuscope` in them.

Input: the shipped units of deploy/systemd. Output: their texts, and the `systemctl` commands that install or
remove them. A unit that was not written by gpuscope is never replaced or removed.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.serve.render import RenderedFile, read_shipped

UNIT_FOLDER: Final = Path("/etc/systemd/system")
UNITS: Final = {
    "agent": ("gpuscope-agent.service",),
    "up": ("gpuscope-up.service",),
    "server": ("gpuscope-server.service",),
    "textfile": ("gpuscope-textfile.service",),
}
"""By service name, its unit files."""
FORMER_UNITS: Final = {"textfile": ("gpuscope-textfile.timer",)}
"""Of earlier versions: removed by an install and an uninstall."""
SHIPPED_PROGRAM: Final = "/usr/local/bin/gpuscope"
SHIPPED_TEXTFILE_FOLDER: Final = "/var/lib/node_exporter/textfile_collector"
RESTART: Final = "RestartSec=5\n"
GROWING_RESTARTS_SINCE: Final = 254
# Slower and slower, up to 5 minutes: five starts then take longer than StartLimitIntervalSec, so that a service
# whose disk was full for an hour comes back. An older systemd gives up instead.
GROWING_RESTARTS: Final = "RestartSteps=5\nRestartMaxDelaySec=5min\n"
MARK: Final = "# Written by `gpuscope render systemd`"
# ProtectHome and PrivateTmp hide these from a unit.
HIDDEN_FOLDERS: Final = (Path("/home"), Path("/root"), Path("/run/user"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    services: tuple[str, ...]
    program: Path
    textfile_folder: str = SHIPPED_TEXTFILE_FOLDER
    systemd_version: int = 0
    """0: unknown, as for another machine's files."""


def unit_files(plan: UnitPlan) -> list[RenderedFile]:
    return [
        RenderedFile(name, _render(read_shipped(f"systemd/{name}"), plan))
        for service in plan.services
        for name in UNITS[service]
    ]


def _render(text: str, plan: UnitPlan) -> str:
    if plan.systemd_version >= GROWING_RESTARTS_SINCE:
        text = text.replace(RESTART, RESTART + GROWING_RESTARTS)
    return text.replace(SHIPPED_PROGRAM, str(plan.program)).replace(
        SHIPPED_TEXTFILE_FOLDER, plan.textfile_folder
    )


def parse_services(names: list[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in UNITS]
    if unknown:
        raise UsageError(f"render systemd: unknown service {unknown[0]!r}; known are {', '.join(UNITS)}")
    return tuple(dict.fromkeys(names)) or tuple(UNITS)


def parse_textfile_folder(text: str) -> str:
    # systemd splits ReadWritePaths and ExecStart at blanks, and expands % and $.
    if not text.startswith("/") or any(character in " \t\n\"'\\%$;" for character in text):
        raise UsageError(f"--textfile-folder: {text!r} is not an absolute path without blanks, quotes, % and $")
    return text.rstrip("/")


def find_program() -> Path:
    """The `gpuscope` that runs now, as the unit will call it."""
    beside = Path(sys.executable).parent / "gpuscope"
    program = str(beside) if beside.is_file() else shutil.which("gpuscope")
    return Path(program) if program else Path(SHIPPED_PROGRAM)


def check_program(program: Path) -> Path:
    """Refuses a program that the units' sandbox would hide: the unit would fail in a restart loop."""
    for path in (program, program.resolve()):
        if hidden := _hidden_folder(path):
            raise UsageError(
                f"{path} is in {hidden}, which the units' sandbox hides; install gpuscope in /opt "
                "(python3 -m venv /opt/gpuscope && /opt/gpuscope/bin/pip install GPUSCOPE.whl) and run "
                "/opt/gpuscope/bin/gpuscope render systemd, or name it with --program"
            )
    interpreter = _interpreter(program)
    if hidden := _hidden_folder(interpreter):
        # An environment in /opt is not enough if a Python of pyenv or conda made it.
        raise UsageError(
            f"{program} runs with {interpreter}, which is in {hidden}: the units' sandbox hides it; make the "
            "environment again with a Python of the system: /usr/bin/python3 -m venv --clear /opt/gpuscope && "
            "/opt/gpuscope/bin/pip install GPUSCOPE.whl"
        )
    if not program.is_absolute() or any(character in " \t\"'\\%$;" for character in str(program)):
        raise UsageError(f"--program: {str(program)!r} is not an absolute path without blanks, quotes, % and $")
    return program


def _hidden_folder(path: Path) -> Path | None:
    return next((folder for folder in HIDDEN_FOLDERS if path.is_relative_to(folder)), None)


def _interpreter(program: Path) -> Path:
    """The Python in the script's first line, with links resolved; the program itself if it is not a script."""
    try:
        with program.open("rb") as script:
            first = script.readline(4096)
    except OSError:
        return program
    if not first.startswith(b"#!"):
        return program
    return Path(first[2:].decode("utf-8", "replace").split()[0]).resolve()


def parse_systemd_version(text: str) -> int:
    """From `systemctl --version`: `systemd 252 (252.39-1~deb12u1)`; 0 if it is something else."""
    words = text.split()
    return int(words[1]) if len(words) > 1 and words[0] == "systemd" and words[1].isdigit() else 0


def install_commands(plan: UnitPlan) -> list[list[str]]:
    """A restart, because an earlier version of the unit may run."""
    names = service_units(plan)
    return [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", *names],
        ["systemctl", "restart", "--no-block", *names],
    ]


def service_units(plan: UnitPlan) -> list[str]:
    return [name for service in plan.services for name in UNITS[service]]


def former_units(plan: UnitPlan, folder: Path) -> list[Path]:
    names = (name for service in plan.services for name in FORMER_UNITS.get(service, ()))
    return [path for name in names if (path := folder / name).exists()]


def written_files(unit_paths: Iterable[Path]) -> list[Path]:
    """The text files that these units write, which the service of an earlier version did not remove."""
    texts = (path.read_text("utf-8", "replace") for path in unit_paths)
    return [Path(match[1]) for text in texts if (match := _OUTPUT.search(text))]


_OUTPUT = re.compile(r"^ExecStart=.* --output (/\S+\.prom)$", re.MULTILINE)


def uninstall_commands(unit_paths: Iterable[Path]) -> list[list[str]]:
    """Timers first: they would start their service again."""
    names = sorted((path.name for path in unit_paths), key=lambda name: not name.endswith(".timer"))
    return [["systemctl", "disable", "--now", *names]]


def refuse_foreign_units(folder: Path, services: tuple[str, ...]) -> list[Path]:
    """The installed unit files of these services. A file without our mark belongs to somebody else."""
    paths = [
        folder / name for service in services for name in (*UNITS[service], *FORMER_UNITS.get(service, ()))
    ]
    present = [path for path in paths if path.exists() or path.is_symlink()]
    for path in present:
        if path.is_symlink() or not path.read_text("utf-8", "replace").startswith(MARK):
            raise UsageError(f"{path} was not written by gpuscope; move it away first")
    return present
