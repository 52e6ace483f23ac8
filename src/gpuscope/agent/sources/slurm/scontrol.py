"""`scontrol`: is the controller up, reservations, licences.

Input: scontrol's text; output: readings. Only administrators write what stands in it, and a reservation's name
and comment may still be any text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from gpuscope.agent.sources.slurm.gres import reserved_gpus
from gpuscope.agent.sources.slurm.hostlist import expand_hostlist
from gpuscope.agent.sources.slurm.values import parse_integer, parse_time
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import License, Reservation, SlurmNode

_PING = re.compile(r"^Slurmctld\(([^)]*)\) at (.*?) (?:is|are) (UP|DOWN)", re.MULTILINE)
_RESERVATION = re.compile(r"ReservationName=(?P<name>.*?)(?= StartTime=\S* EndTime=|$)", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z]\w*)=(\S*)")


def controllers(text: str) -> dict[str, bool]:
    """Whether each controller answers, by `primary at host`, from `scontrol ping`."""
    return {f"{role} at {host}": state == "UP" for role, host, state in _PING.findall(text)}


def parse_reservations(text: str, nodes: Mapping[str, SlurmNode]) -> tuple[Reservation, ...]:
    """From `scontrol show reservation -o`, one line each.

    The name may have any text in it, and so may the comment at the end: the first value of a key counts.
    """
    found = []
    for line in text.split("\n"):
        match = _RESERVATION.match(line)
        if match is not None:
            pairs = reversed(_PAIR.findall(line, match.end("name")))
            row = {key: _text(value) for key, value in pairs} | {"ReservationName": match["name"]}
            found.append(_to_reservation(row, nodes))
    return tuple(found)


def _to_reservation(row: Mapping[str, str], nodes: Mapping[str, SlurmNode]) -> Reservation:
    gpus: Maybe[int] = ABSENT
    with contextlib.suppress(ValueError):
        names = expand_hostlist(row.get("Nodes", ""))
        gpus = reserved_gpus(row.get("TRES", ""), names, nodes, some_cores="CoreIDs" in row)
    return Reservation(
        name=row.get("ReservationName", ""),
        state=row.get("State", ""),
        starts_at=parse_time(row.get("StartTime", "")),
        ends_at=parse_time(row.get("EndTime", "")),
        node_list=row.get("Nodes", ""),
        node_count=parse_integer(row.get("NodeCnt", "")),
        cores=parse_integer(row.get("CoreCnt", "")),
        gpus=gpus,
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
