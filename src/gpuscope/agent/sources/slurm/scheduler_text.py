"""Statistics of Slurm's controller and its schedulers (`sdiag`), and shares of accounts (`sshare`).

Input: sdiag's text; output: `SchedulerStats` by sdiag's own names. A line that this version does not print is
not in them; a section or line that is not known is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuscope.agent.sources.slurm.values import parse_integer, parse_number
from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import FairShare, RpcCount, SchedulerStats

MAX_RPC_ROWS = 500
_SECTIONS = {
    "Main schedule statistics": "main",
    "Main scheduler exit": "main_exits",
    "Backfilling stats": "backfill",
    "Backfill exit": "backfill_exits",
    "Remote Procedure Call statistics by message type": "rpcs_by_type",
    "Remote Procedure Call statistics by user": "rpcs_by_user",
    "Pending RPC statistics": "pending",
    "Latency for 1000 calls": "latency",
}
_TIMES = {
    "sdiag output at": "answered_at",
    "Data since": "statistics_since",
    "Job states ts:": "jobs_counted_at",
}
_TIME = re.compile(r"\((\d{1,18})\)$", re.ASCII)  # behind a date in words
_RPC = re.compile(r"(\S+)\s+\( *-?\d+\) count:(\d+) +ave_time:\d+ +total_time:(\d+)", re.ASCII)


def parse_sdiag(text: str) -> SchedulerStats:
    """Raises UnusableAnswer if the text is not sdiag's, or was cut off before its statistics."""
    values: dict[str, dict[str, float]] = {"server": {}}
    times: dict[str, float] = {}
    rpcs: dict[str, list[RpcCount]] = {"rpcs_by_type": [], "rpcs_by_user": []}
    section = "server"
    for line in text.splitlines():
        if line[:1] not in ("\t", " "):
            section = _section(line, section)
        if section in rpcs:
            found = _RPC.search(line)
            if found and len(rpcs[section]) < MAX_RPC_ROWS:
                rpcs[section].append(RpcCount(found[1], int(found[2]), int(found[3]) / 1e6))
            continue
        if section == "server":
            times |= _time(line)
        name, colon, value = line.rpartition(":")
        number = parse_integer(value.strip())
        if colon and number is not ABSENT:
            values.setdefault(section, {})[name.strip()] = float(number)
    if "Server thread count" not in values["server"] or "main" not in values:
        raise UnusableAnswer("sdiag's output was cut off or is not sdiag's")
    return SchedulerStats(
        server=values["server"],
        main=values["main"],
        backfill=values.get("backfill", {}),
        main_exits=values.get("main_exits", {}),
        backfill_exits=values.get("backfill_exits", {}),
        rpcs_by_type=tuple(rpcs["rpcs_by_type"]),
        rpcs_by_user=tuple(rpcs["rpcs_by_user"]),
        **times,
    )


def _time(line: str) -> dict[str, float]:
    for title, name in _TIMES.items():
        found = _TIME.search(line) if line.startswith(title) else None
        if found:
            return {name: float(found[1])}
    return {}


def _section(line: str, current: str) -> str:
    for title, name in _SECTIONS.items():
        if line.startswith(title):
            return name
    # The lines in front of the first title are the server's; a title that is not known ends a section.
    return "unknown" if current != "server" and line.strip() else current


# `sshare -a`: the tree of accounts and users with their shares, usage and fair-share factor.
#
# Input: sshare's text; output: associations in its order. The indentation of the account is its depth in the
# tree. Under Fair Tree an account has no fair-share factor, only its users have; without slurmdbd the text is
# empty, and so is the result.

FIELDS = ("Account", "User", "RawShares", "NormShares", "RawUsage", "EffectvUsage", "FairShare", "LevelFS")
ARGUMENTS = ("-a", "-n", "-P", "-o")
MAX_ASSOCIATIONS = 100_000


def parse_sshare(text: str, fields: Sequence[str] = FIELDS) -> tuple[FairShare, ...]:
    shares: list[FairShare] = []
    ancestors: list[str] = []  # the account at each depth above the current line
    for line in text.split("\n", MAX_ASSOCIATIONS)[:MAX_ASSOCIATIONS]:
        # From the right: an account's name may have `|` in it, the columns behind it do not.
        cells = line.rsplit("|", len(fields) - 1)
        if len(cells) < len(fields):
            continue
        row = dict(zip(fields, cells, strict=False))
        depth = len(row["Account"]) - len(row["Account"].lstrip(" "))
        account, user = row["Account"].strip(), row["User"].strip()
        del ancestors[depth:]
        parent = ancestors[-1] if ancestors and not user else ""
        if not user:
            ancestors.append(account)
        shares.append(
            FairShare(
                account=account,
                parent=parent,
                user=user,
                raw_shares=parse_number(row["RawShares"]),
                norm_shares=parse_number(row["NormShares"]),
                raw_usage=parse_number(row["RawUsage"]),
                effective_usage=parse_number(row["EffectvUsage"]),
                fair_share=parse_number(row["FairShare"]),
                level_fs=parse_number(row.get("LevelFS", "")),
            )
        )
    return tuple(shares)
