"""Everything the machine itself says of a process, looked up once in its life and kept by PID and start time.

The collector reads start times only; the rest (user databases, environment, container files) may hang, so it is
read in a worker: the collector leaves keys with `want` and takes what is known. A part that cannot be read is
absent and counted under its name; the other parts stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpuscope.errors import SourceError
from gpuscope.owners.cgroup import NOWHERE, Place, parse_cgroup
from gpuscope.owners.proc import Proc, ProcessGone
from gpuscope.owners.slurm_environment import NO_WORDS, SlurmWords, parse_environment
from gpuscope.owners.users import UserBook, read_hostile_text
from gpuscope.readings import ABSENT, Maybe, Reading
from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec, Tier

MAX_COMMAND: Final = 512


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """A process for good: a PID alone names another one after reuse."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    place: Place = NOWHERE
    user: Maybe[str] = ABSENT
    group: Maybe[str] = ABSENT
    slurm: SlurmWords = NO_WORDS
    command_line: Maybe[str] = ABSENT  # only where asked for: it may hold secrets


class ProcessLookup:
    """A source that answers to its own `known`; `read` is for the worker, the rest for the collector."""

    def __init__(self, proc: Proc, users: UserBook, full_commands: bool = False) -> None:
        self._proc = proc
        self._users = users
        self._full_commands = full_commands
        self._wanted: frozenset[ProcessKey] = frozenset()
        self.known: Mapping[ProcessKey, Found] = {}
        self.failures: Counter[str] = Counter()

    def want(self, keys: Collection[ProcessKey]) -> bool:
        """Says who is here now, and forgets the others; whether there is something to look up."""
        self._wanted = frozenset(keys)
        return any(key not in self.known for key in keys)

    def read(self, due: frozenset[Tier]) -> Reading:
        wanted, known = self._wanted, self.known
        now: dict[ProcessKey, Found] = {}
        for key in wanted:
            now[key] = known[key] if key in known else self.look_up(key)
        if now.keys() != known.keys():
            self.known = now  # replaced as a whole: the collector reads it from another thread
        return Reading()

    def close(self) -> None:
        pass

    def look_up(self, key: ProcessKey) -> Found:
        pid = key.pid
        try:
            place = self._place(pid)
            user, group = self._user(pid, place)
            words = self._slurm(pid, place)
            line = self._command_line(pid) if self._full_commands else ABSENT
            return Found(place=place, user=user, group=group, slurm=words, command_line=line)
        except ProcessGone:
            return Found()

    def _place(self, pid: int) -> Place:
        try:
            return parse_cgroup(self._proc.cgroup(pid))
        except OSError:
            self.failures["cgroup"] += 1
            return NOWHERE

    def _user(self, pid: int, place: Place) -> tuple[Maybe[str], Maybe[str]]:
        try:
            uid, gid = self._proc.ids(pid)
        except (OSError, SourceError):
            self.failures["user"] += 1
            return ABSENT, ABSENT
        inside = place.container_id is not ABSENT or place.pod_uid is not ABSENT
        ask = partial(self._containers_passwd, pid) if inside else None
        return self._users.user(uid, ask), self._users.group(gid)

    def _containers_passwd(self, pid: int) -> str:
        return read_hostile_text(Path(self._proc.root, str(pid), "root/etc/passwd"))

    def _slurm(self, pid: int, place: Place) -> SlurmWords:
        if place.container_id is not ABSENT and place.job is ABSENT and place.sluid is ABSENT:
            return NO_WORDS  # a container's environment is free text, and no job started it
        try:
            return parse_environment(self._proc.environ(pid))
        except OSError:
            # Only root may; without a job in the cgroup nobody expects an answer.
            if place.job is not ABSENT or place.sluid is not ABSENT:
                self.failures["environment"] += 1
            return NO_WORDS

    def _command_line(self, pid: int) -> Maybe[str]:
        try:
            return parse_command_line(self._proc.cmdline(pid))
        except OSError:
            self.failures["command"] += 1
            return ABSENT


def parse_command_line(text: bytes) -> Maybe[str]:
    words = [word.decode("utf-8", "replace") for word in text.rstrip(b"\0").split(b"\0")]
    return " ".join(words)[:MAX_COMMAND] or ABSENT


def lookup_spec(lookup: ProcessLookup) -> SourceSpec:
    def open_lookup(settings: Settings) -> ProcessLookup:
        return lookup

    return SourceSpec(
        name="process-owners",
        summary="whose the processes on the GPUs are, from /proc",
        open=open_lookup,
        interval_seconds=lambda settings: 0.0,  # on demand: whenever a new process shows up
    )


def keys_of(pids: Iterable[int], proc: Proc) -> dict[int, tuple[ProcessKey, str]]:
    """Key and short name of each process that still runs."""
    keys = {}
    for pid in pids:
        try:
            stat = proc.stat(pid)
        except (ProcessGone, OSError, SourceError):
            continue
        keys[pid] = (ProcessKey(pid, stat.start_ticks), stat.comm)
    return keys
