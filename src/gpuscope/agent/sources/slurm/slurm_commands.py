"""Reads Slurm with its own commands, as any user may: squeue, sinfo, sdiag, sshare, scontrol.

Each command runs with an environment in which no variable of the user changes what it prints. A field that this
version of a command does not have is left out from then on.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from gpuscope.agent.sources.slurm import cluster_text, job_text, scheduler_text
from gpuscope.agent.sources.slurm.job_text import PlacementReader, keep_placement_lines
from gpuscope.agent.sources.slurm.slurm_source import Query, nodes_by_name
from gpuscope.agent.sources.slurm.values import (
    OPTIONAL_FIELDS,
    SlurmError,
    format_argument,
    parse_version,
    refused_field,
)
from gpuscope.base.command_runner import Command, LineFilter
from gpuscope.base.errors import SourceError, UnusableAnswer
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import SlurmFailure, SlurmJob

# Whether a list of Slurm is complete: what PrivateData in slurm.conf hides from the user that reads it.
#
# squeue, sshare and `scontrol show reservation` leave out what this user may not see, and say nothing about
# it. Root, SlurmUser and Slurm's operators see everything. For anybody else the configuration is read after
# the list, in every round: it may have changed since the last one.

_ALL_RIGHTS: Final = frozenset({"Operator", "Administrator"})


@dataclass(frozen=True, slots=True)
class Privacy:
    """From `scontrol show config`."""

    hidden: frozenset[str]  # such as `jobs`, `usage`
    slurm_user_id: int | None


def parse_privacy(text: str) -> Privacy:
    """Raises SourceError for text that is not a configuration."""
    listed = re.search(r"^PrivateData\s*=\s*(\S+)", text, re.MULTILINE)
    if listed is None:
        raise SourceError("scontrol show config printed no PrivateData")
    user = re.search(r"^SlurmUser\s*=\s*\S*\((\d{1,10})\)", text, re.MULTILINE | re.ASCII)
    items = frozenset(item.lower() for item in listed[1].split(","))
    return Privacy(items - {"none"}, None if user is None else int(user[1]))


class PrivateDataCheck:
    def __init__(self, scontrol: Command, sacctmgr: Command, user_id: int | None = None) -> None:
        self._scontrol, self._sacctmgr = scontrol, sacctmgr
        self._user_id = os.geteuid() if user_id is None else user_id
        self._hidden: frozenset[str] | None = None

    def start_round(self) -> None:
        self._hidden = None

    def require(self, *items: str) -> None:
        """Raises SlurmError if the list that was just read may lack some of these `items`."""
        if self._user_id == 0:
            return
        if self._hidden is None:
            self._hidden = self._read_hidden()
        hidden = sorted(self._hidden.intersection(items))
        if hidden:
            raise SlurmError(
                f"PrivateData in slurm.conf hides other users' {' and '.join(hidden)} from "
                f"{self._user_name() or f'user {self._user_id}'}, so nothing is shown instead of a part",
                SlurmFailure.HIDDEN,
            )

    def _read_hidden(self) -> frozenset[str]:
        privacy = parse_privacy(self._scontrol.run_checked("show", "config").stdout)
        if not privacy.hidden or self._user_id == privacy.slurm_user_id or self._is_operator():
            return frozenset()
        return privacy.hidden

    def _is_operator(self) -> bool:
        """False also without slurmdbd, which is where these rights are."""
        name = self._user_name()
        if not name:
            return False
        try:
            answer = self._sacctmgr.run("-n", "-P", "show", "user", name, "format=AdminLevel")
        except SourceError:
            return False
        return answer.ok and answer.stdout.strip() in _ALL_RIGHTS

    def _user_name(self) -> str:
        try:
            return pwd.getpwuid(self._user_id).pw_name
        except KeyError:
            return ""


PING_TIMEOUT_SECONDS: Final = 5.0
MAX_OUTPUT_BYTES: Final = 256 << 20  # `scontrol show job -d` prints 1.4 KB for each job
IF_MISSING = "install Slurm's client commands (slurm-client), or give their folder with --slurm-bin-dir"
Parts = Mapping[str, Any]
R = TypeVar("R", job_text.SqueueRun, cluster_text.SinfoRun)
_PROGRAMS = ("scontrol", "squeue", "sinfo", "sdiag", "sshare", "sacctmgr")
_SHOW_JOB = ("show", "job", "-a", "-d")  # -a: hidden partitions too
_MUNGE_HINT = "If munged is up"  # printed before the line that says what is wrong
# Variables that select or format what a command prints: users set them in their profile.
_FOREIGN_PREFIXES = ("SQUEUE_", "SINFO_", "SSHARE_", "SACCT_", "SDIAG_", "SCONTROL_")


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in environment.items() if not key.startswith(_FOREIGN_PREFIXES)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


class SlurmCommands:
    """The backend `commands`."""

    mode = "commands"

    def __init__(self, bin_dir: str, timeout_seconds: float, user_id: int | None = None) -> None:
        """`user_id` is the user that Slurm sees; this process' by default."""
        self._commands = {name: _command(bin_dir, name, timeout_seconds) for name in _PROGRAMS}
        self._ping_command = _command(bin_dir, "scontrol", min(PING_TIMEOUT_SECONDS, timeout_seconds))
        self._fields: dict[str, list[str]] = {
            "squeue": list(job_text.FIELDS),
            "sinfo": list(cluster_text.FIELDS),
            "sshare": list(scheduler_text.FIELDS),
        }
        self._known_jobs: Mapping[bytes, SlurmJob] = {}
        self._placement_reader = PlacementReader(self._show_job)
        self._private_data = PrivateDataCheck(self._commands["scontrol"], self._commands["sacctmgr"], user_id)
        self._version = ""
        self.queries = (
            Query("sdiag", ("scheduler",), self._scheduler),  # first: it counts what squeue then lists
            Query("squeue", ("jobs",), self._jobs),
            Query("sinfo", ("nodes",), self._nodes),
            Query("sshare", ("shares",), self._shares, slow=True),
            Query("scontrol show job", ("placements",), self._placements, slow=True),
            Query("scontrol show reservation", ("reservations",), self._reservations, slow=True),
            Query("scontrol show licenses", ("licenses",), self._licenses, slow=True),
        )

    def require(self) -> None:
        """Raises SourceMissing when a required client is not installed."""
        for name in ("scontrol", "squeue", "sinfo"):
            self._commands[name].require()

    def ping(self) -> str:
        self._private_data.start_round()
        answer = self._ping_command.run("ping")
        states = cluster_text.controllers(answer.stdout)
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

    def _jobs(self, parts: Parts) -> Parts:
        run, rest = self._read_records(
            "squeue",
            job_text.ARGUMENTS,
            job_text.WIDTHS,
            lambda fields: job_text.SqueueRun(self._known_jobs, fields),
        )
        self._known_jobs = run.finish(rest)
        self._private_data.require("jobs")
        return {"jobs": tuple(self._known_jobs.values())}

    def _nodes(self, parts: Parts) -> Parts:
        run, rest = self._read_records(
            "sinfo", cluster_text.ARGUMENTS, cluster_text.WIDTHS, cluster_text.SinfoRun
        )
        nodes = run.finish(rest)
        self._private_data.require("nodes", "partitions")
        return {"nodes": nodes}

    def _read_records(
        self, program: str, argv: Sequence[str], widths: Mapping[str, int], start: Callable[[list[str]], R]
    ) -> tuple[R, str]:
        """What took the records, and text behind the last line break."""
        runs: list[R] = []

        def begin(fields: list[str]) -> LineFilter:
            runs.append(start(fields))
            return runs[-1].take

        rest = self._run_with_fields(program, argv, lambda fields: format_argument(widths, fields), begin)
        return runs[-1], rest

    def _run_with_fields(
        self,
        program: str,
        argv: Sequence[str],
        value: Callable[[list[str]], str],
        keep: Callable[[list[str]], LineFilter] | None = None,
    ) -> str:
        """Runs it, and again without each optional field that it refuses."""
        fields = self._fields[program]
        for _ in range(len(OPTIONAL_FIELDS[program]) + 1):
            answer = self._commands[program].run(*argv, value(fields), keep=keep and keep(fields))
            refused = _spelled_like(refused_field(answer.stderr), fields)
            if answer.ok or refused not in OPTIONAL_FIELDS[program]:
                break
            fields.remove(refused)
        if not answer.ok:
            raise self._commands[program].failure(answer, *argv)
        return answer.stdout

    def _scheduler(self, parts: Parts) -> Parts:
        return {"scheduler": scheduler_text.parse_sdiag(self._run("sdiag"))}

    def _shares(self, parts: Parts) -> Parts:
        text = self._run_with_fields("sshare", scheduler_text.ARGUMENTS, ",".join)
        shares = scheduler_text.parse_sshare(text, self._fields["sshare"])
        self._private_data.require("usage")
        return {"shares": shares}

    def _placements(self, parts: Parts) -> Parts:
        """Of the jobs that squeue has just listed: text can imitate a job that does not exist yet."""
        text = self._run("scontrol", *_SHOW_JOB, keep=keep_placement_lines)
        jobs = parts.get("jobs", ABSENT)
        return {"placements": self._placement_reader.read(text, () if jobs is ABSENT else jobs)}

    def _show_job(self, number: int) -> str:
        return self._run("scontrol", *_SHOW_JOB, str(number), keep=keep_placement_lines)

    def _reservations(self, parts: Parts) -> Parts:
        text = self._run("scontrol", "show", "reservation", "-o")
        self._private_data.require("reservations")
        return {"reservations": cluster_text.parse_reservations(text, nodes_by_name(parts))}

    def _licenses(self, parts: Parts) -> Parts:
        return {"licenses": cluster_text.parse_licenses(self._run("scontrol", "show", "licenses", "-o"))}


def _why_down(controllers: Iterable[str], complaint: str) -> str:
    """scontrol 22.05 says DOWN also if it cannot send a request itself: then it complains about that."""
    for line in complaint.splitlines():
        words = " ".join(line.split()).removeprefix("scontrol: error: ")
        if words and not words.startswith(_MUNGE_HINT):
            return f"no answer from slurmctld ({', '.join(controllers)}): {words[:200]}"
    return f"slurmctld is down ({', '.join(controllers)}); systemctl status slurmctld there"


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
