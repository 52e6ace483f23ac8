"""`sdiag`: statistics of the controller and its schedulers, and of the requests they get.

Input: sdiag's text; output: `SchedulerStats` by sdiag's own names. A line that this version does not print is
not in them; a section or line that is not known is skipped.
"""

from __future__ import annotations

import re

from gpuscope.agent.sources.slurm.values import parse_integer
from gpuscope.base.errors import UnusableAnswer
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import RpcCount, SchedulerStats

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
