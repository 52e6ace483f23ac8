"""Whether a list of Slurm is complete: what PrivateData in slurm.conf hides from the user that reads it.

squeue, sshare and `scontrol show reservation` leave out what this user may not see, and say nothing about it.
Root, SlurmUser and Slurm's operators see everything. For anybody else the configuration is read after the list,
in every round: it may have changed since the last one.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.sources.slurm.slurm_error import SlurmError
from gpuscope.base.command_runner import Command
from gpuscope.base.errors import SourceError
from gpuscope.model.readings.slurm import SlurmFailure

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
