"""Reads Slurm with its own commands, as any user may: squeue, sinfo, sdiag, sshare, scontrol.

Each command runs with an environment in which no variable of the user changes what it prints. A field that this
version of a command does not have is left out from then on.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpuscope.command_runner import Command, LineFilter
from gpuscope.errors import SourceError, UnusableAnswer
from gpuscope.sources.slurm import scontrol, sdiag, sinfo, squeue, sshare
from gpuscope.sources.slurm.delimited import format_argument
from gpuscope.sources.slurm.slurm_source import Query, gres_by_node
from gpuscope.sources.slurm.versions import OPTIONAL_FIELDS, parse_version, refused_field

log = logging.getLogger("gpuscope.source")

PING_TIMEOUT_SECONDS: Final = 5.0
MAX_OUTPUT_BYTES: Final = 256 << 20  # `scontrol show job -d` prints 1.4 KB for each job
IF_MISSING = "install Slurm's client commands (slurm-client), or give their folder with --slurm-bin-dir"
Parts = Mapping[str, Any]
_PROGRAMS = ("scontrol", "squeue", "sinfo", "sdiag", "sshare")
_MUNGE_HINT = "If munged is up"  # printed before the line that says what is wrong
# Variables that select or format what a command prints: users set them in their profile.
_FOREIGN_PREFIXES = ("SQUEUE_", "SINFO_", "SSHARE_", "SACCT_", "SDIAG_", "SCONTROL_")


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in environment.items() if not key.startswith(_FOREIGN_PREFIXES)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


class SlurmCommands:
    """The backend `commands`."""

    mode = "commands"

    def __init__(self, bin_dir: str, timeout_seconds: float, mark: str = "") -> None:
        self._mark = mark or f"#{secrets.token_hex(6)}#"
        self._commands = {name: _command(bin_dir, name, timeout_seconds) for name in _PROGRAMS}
        self._ping_command = _command(bin_dir, "scontrol", min(PING_TIMEOUT_SECONDS, timeout_seconds))
        self._fields: dict[str, list[str]] = {
            "squeue": list(squeue.FIELDS),
            "sinfo": list(sinfo.FIELDS),
            "sshare": list(sshare.FIELDS),
        }
        self._squeue_parser = squeue.SqueueParser()
        self._version = ""
        self._private_data = ""  # as logged
        self.queries = (
            Query("squeue", ("jobs",), self._jobs),
            Query("sinfo", ("nodes",), self._nodes),
            Query("sdiag", ("scheduler",), self._scheduler),
            Query("sshare", ("shares",), self._shares, slow=True),
            Query("scontrol show job", ("placements",), self._placements, slow=True),
            Query("scontrol show reservation", ("reservations",), self._reservations, slow=True),
            Query("scontrol show licenses", ("licenses",), self._licenses, slow=True),
            Query("scontrol show config", ("private_data",), self._configuration, slow=True, once=True),
        )

    def require(self) -> None:
        """Raises SourceMissing when a required client is not installed."""
        for name in ("scontrol", "squeue", "sinfo"):
            self._commands[name].require()

    def ping(self) -> str:
        answer = self._ping_command.run("ping")
        states = scontrol.controllers(answer.stdout)
        if not states and not answer.ok:
            raise self._ping_command.failure(answer, "ping")
        if states and not any(states.values()):
            raise SourceError(_why_down(states, answer.stderr))
        if not self._version:
            self._version = parse_version(self._commands["scontrol"].run("--version").stdout)
        return self._version

    def close(self) -> None:
        pass

    def _run(self, program: str, *arguments: str, keep: LineFilter | None = None) -> str:
        stdout = self._commands[program].run_checked(*arguments, keep=keep).stdout
        if stdout and not stdout.endswith("\n"):
            raise UnusableAnswer(f"{program}'s output was cut off, so none of it is used")
        return stdout

    def _run_with_fields(self, program: str, argv: Sequence[str], value: Callable[[list[str]], str]) -> str:
        """Runs it, and again without each optional field that it refuses."""
        fields = self._fields[program]
        for _ in range(len(OPTIONAL_FIELDS[program]) + 1):
            answer = self._commands[program].run(*argv, value(fields))
            refused = _spelled_like(refused_field(answer.stderr), fields)
            if answer.ok or refused not in OPTIONAL_FIELDS[program]:
                break
            fields.remove(refused)
        if not answer.ok:
            raise self._commands[program].failure(answer, *argv)
        return answer.stdout

    def _jobs(self, parts: Parts) -> Parts:
        text = self._run_with_fields(
            "squeue", squeue.ARGUMENTS, lambda fields: format_argument(fields, squeue.FREE_TEXT, self._mark)
        )
        parsed = self._squeue_parser.parse(text, self._mark, self._fields["squeue"])
        return {"jobs": _complete("squeue", parsed.jobs, parsed.bad_lines)}

    def _nodes(self, parts: Parts) -> Parts:
        text = self._run_with_fields(
            "sinfo", sinfo.ARGUMENTS, lambda fields: format_argument(fields, sinfo.FREE_TEXT, self._mark)
        )
        nodes, bad_lines = sinfo.parse_sinfo(text, self._mark, self._fields["sinfo"])
        return {"nodes": _complete("sinfo", nodes, bad_lines)}

    def _scheduler(self, parts: Parts) -> Parts:
        return {"scheduler": sdiag.parse_sdiag(self._run("sdiag"))}

    def _shares(self, parts: Parts) -> Parts:
        text = self._run_with_fields("sshare", sshare.ARGUMENTS, ",".join)
        return {"shares": sshare.parse_sshare(text, self._fields["sshare"])}

    def _placements(self, parts: Parts) -> Parts:
        text = self._run("scontrol", "show", "job", "-d", keep=scontrol.keep_placement_lines)
        return {"placements": scontrol.parse_placements(text)}

    def _reservations(self, parts: Parts) -> Parts:
        text = self._run("scontrol", "show", "reservation", "-o")
        return {"reservations": scontrol.parse_reservations(text, gres_by_node(parts))}

    def _licenses(self, parts: Parts) -> Parts:
        return {"licenses": scontrol.parse_licenses(self._run("scontrol", "show", "licenses", "-o"))}

    def _configuration(self, parts: Parts) -> Parts:
        hidden = scontrol.private_data(self._run("scontrol", "show", "config"))
        if hidden and hidden != self._private_data:
            log.warning(
                "source slurm: PrivateData=%s in slurm.conf: unless this user is a Slurm operator, it does "
                "not see other users' %s, and the counts are too low",
                hidden,
                hidden,
            )
        self._private_data = hidden
        return {"private_data": hidden}


def _why_down(controllers: Iterable[str], complaint: str) -> str:
    """scontrol 22.05 says DOWN also if it cannot send a request itself: then it complains about that."""
    for line in complaint.splitlines():
        words = " ".join(line.split()).removeprefix("scontrol: error: ")
        if words and not words.startswith(_MUNGE_HINT):
            return f"no answer from slurmctld ({', '.join(controllers)}): {words[:200]}"
    return f"slurmctld is down ({', '.join(controllers)}); systemctl status slurmctld there"


def _complete(program: str, found: tuple[object, ...], bad_lines: int) -> tuple[object, ...]:
    """Lines in an unknown format are left out; if most are unknown, the output is not Slurm's."""
    if bad_lines > len(found):
        raise UnusableAnswer(
            f"{program} printed {bad_lines} lines in an unknown format; check that it is Slurm's own command"
        )
    return found


def _command(bin_dir: str, name: str, timeout_seconds: float) -> Command:
    path = str(Path(bin_dir) / name) if bin_dir else name
    return Command(
        path,
        timeout_seconds,
        program=name,
        if_missing=IF_MISSING,
        environment=client_environment(os.environ),
        max_stdout_bytes=MAX_OUTPUT_BYTES,
    )


def _spelled_like(refused: str, fields: Sequence[str]) -> str:
    return next((name for name in fields if name.lower() == refused.lower()), "")
