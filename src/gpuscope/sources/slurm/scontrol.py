"""`scontrol`: is the controller up, where each job's GPUs are, reservations, licences.

Input: scontrol's text; output: readings. Text that users choose (names, comments, paths) stands among the rest,
so only lines of a fixed shape in their fixed place are read, and a job whose record has such a line twice is
left out: its GPUs are then not known, which is better than wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuscope.readings import ABSENT
from gpuscope.readings.slurm import Gres, JobPlacement, License, Reservation
from gpuscope.sources.slurm.gres import gres_of_tres, parse_held
from gpuscope.sources.slurm.hostlist import MAX_PLACEMENTS, expand_hostlist
from gpuscope.sources.slurm.values import parse_integer, parse_time

_PING = re.compile(r"^Slurmctld\(([^)]*)\) at (.*?) (?:is|are) (UP|DOWN)", re.MULTILINE)
_JOB_GRES = "\n   JOB_GRES="
_NODES = re.compile(r" +Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
# Possessive (`*+`, `++`): a third faster, because the engine keeps no way back.
_OTHER_LINES = re.compile(rb"(?:^(?!JobId=|   JOB_GRES=|     Nodes=).*+\n)++", re.MULTILINE)
_RESERVATION = re.compile(r"ReservationName=(?P<name>.*?)(?= StartTime=\S* EndTime=|$)", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z]\w*)=(\S*)")


def controllers(text: str) -> dict[str, bool]:
    """Whether each controller answers, by `primary at host`, from `scontrol ping`."""
    return {f"{role} at {host}": state == "UP" for role, host, state in _PING.findall(text)}


def private_data(text: str) -> str:
    """What slurm.conf hides from ordinary users, from `scontrol show config`; empty if nothing."""
    match = re.search(r"^PrivateData\s*=\s*(\S+)", text, re.MULTILINE)
    return "" if match is None or match[1] == "none" else match[1]


def keep_placement_lines(lines: bytes) -> bytes:
    """The lines of `scontrol show job -d` that `parse_placements` reads; others leave an empty line.

    20,000 jobs print 25 MB, of which this is a twentieth.
    """
    return _OTHER_LINES.sub(b"\n", lines)


def parse_placements(text: str) -> Mapping[int, tuple[JobPlacement, ...]]:
    """What each job holds on each of its nodes, from `scontrol show job -d`; jobs that wait are left out."""
    found: dict[int, tuple[JobPlacement, ...]] = {}
    twice: set[int] = set()
    left = MAX_PLACEMENTS
    for record in ("\n" + text).split("\nJobId=")[1:]:
        head, line, rest = record.partition(_JOB_GRES)
        if not line or _JOB_GRES in rest:
            continue
        job = parse_integer(head.partition(" ")[0])
        if job is ABSENT:
            continue
        if job in found:
            twice.add(job)
            continue
        placements = _placements(rest.partition("\n")[2], left)
        left -= len(placements)
        if placements:
            found[job] = placements
        if left <= 0:
            break
    for job in twice:
        del found[job]
    return found


def _placements(rest: str, limit: int) -> tuple[JobPlacement, ...]:
    """From the lines behind `JOB_GRES=`, up to the first that is not of a node; () if Slurm knows no counts."""
    found: list[JobPlacement] = []
    while rest.startswith("     Nodes="):
        line, _, rest = rest.partition("\n")
        match = _NODES.fullmatch(line)
        if match is None:
            break
        held = parse_held(match[2])
        if held is ABSENT:
            return ()
        try:
            names = expand_hostlist(match[1], max(1, limit - len(found)))
        except ValueError:
            continue
        found.extend(JobPlacement(name, held) for name in names)
    return tuple(found)


def parse_reservations(text: str, gpus_of_node: Mapping[str, tuple[Gres, ...]]) -> tuple[Reservation, ...]:
    """From `scontrol show reservation -o`, one line each.

    The name may have any text in it, and so may the comment at the end: the first value of a key counts.
    """
    found = []
    for line in text.split("\n"):
        match = _RESERVATION.match(line)
        if match is not None:
            pairs = reversed(_PAIR.findall(line, match.end("name")))
            row = {key: _text(value) for key, value in pairs} | {"ReservationName": match["name"]}
            found.append(_to_reservation(row, gpus_of_node))
    return tuple(found)


def _to_reservation(row: Mapping[str, str], gpus_of_node: Mapping[str, tuple[Gres, ...]]) -> Reservation:
    try:
        nodes = expand_hostlist(row.get("Nodes", ""))
    except ValueError:
        nodes = ()
    by_tres = gres_of_tres(row.get("TRES", ""))
    known = [gres for node in nodes for gres in gpus_of_node.get(node, ())]
    gpus = sum(gres.count for gres in by_tres or known if gres.kind == "gpu")
    return Reservation(
        name=row.get("ReservationName", ""),
        state=row.get("State", ""),
        starts_at=parse_time(row.get("StartTime", "")),
        ends_at=parse_time(row.get("EndTime", "")),
        node_list=row.get("Nodes", ""),
        node_count=parse_integer(row.get("NodeCnt", "")),
        cores=parse_integer(row.get("CoreCnt", "")),
        gpus=gpus if by_tres or gpus_of_node else ABSENT,
        partition=row.get("PartitionName", ""),
        users=row.get("Users", ""),
        accounts=row.get("Accounts", ""),
        flags=row.get("Flags", ""),
    )


def _text(value: str) -> str:
    return "" if value == "(null)" else value


def parse_licenses(text: str) -> tuple[License, ...]:
    """From `scontrol show licenses -o`."""
    found = []
    for line in text.splitlines():
        row = dict(_PAIR.findall(line))
        total, used = parse_integer(row.get("Total", "")), parse_integer(row.get("Used", ""))
        if "LicenseName" not in row or total is ABSENT or used is ABSENT:
            continue
        free, reserved = parse_integer(row.get("Free", "")), parse_integer(row.get("Reserved", ""))
        found.append(
            License(
                name=row["LicenseName"],
                count=total,
                used=used,
                free=total - used if free is ABSENT else free,
                reserved=0 if reserved is ABSENT else reserved,
                remote=row.get("Remote") == "yes",
            )
        )
    return tuple(found)
