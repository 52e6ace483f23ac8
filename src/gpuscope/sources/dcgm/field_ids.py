"""Which fields the stream asks for, and how this DCGM's own list of fields is read.

One id that DCGM does not know ends the whole run, so the wanted ids are checked against `dcgmi dmon -l` first.
Profiling ids are asked for as many as the GPUs allow: all, then the few that every profiled GPU has, then none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpuscope.readings.dcgm_fields import (
    DRIVER_READINGS,
    FIELD_READINGS,
    P2P_BITMAP_ID,
    PROFILING_IDS,
    TEXT_READINGS,
    dcgm_fields,
)
from gpuscope.readings.dcgm_names import ids_by_name
from gpuscope.settings import Settings

UUID_ID = 54
INDEX_ID = 52
CUDA_VERSION_ID = 5
MAX_IDS = 127  # in one `-e` list; one more and DCGM says "Bad parameter"

# The driver measures PCIe throughput for 20 ms per call and direction; every second on every GPU that is too
# much for a number most never ask DCGM for. The profiling units count it for nothing.
_COSTLY_IDS = frozenset({200, 201})

# What the dcgm families export and no reading holds: XID, NVLink errors and throughput, vGPU licence.
_FAMILY_IDS = (230, 254, 409, 419, 429, 439, 449, 526)

# What dcgm-exporter works out itself, by the number it gives it, and the field it comes from.
_BEHIND_OWN_COUNTERS = {9001: 230, 9002: 112, 9004: P2P_BITMAP_ID}

DEFAULT_IDS = (
    UUID_ID,
    INDEX_ID,
    CUDA_VERSION_ID,
    *DRIVER_READINGS,
    *TEXT_READINGS,
    *(row.id for row in FIELD_READINGS if row.id not in _COSTLY_IDS),
    *_FAMILY_IDS,
)

BASIC_PROFILING_IDS = frozenset({1001, 1002, 1003, 1004, 1005, 1009, 1010})

# What the exporters of 2018 asked DCGM 1.x for: every DCGM has these.
EARLIEST_IDS = frozenset(
    {UUID_ID, 100, 101, 140, 150, 155, 202, 203, 204, 206, 207, 230, 251, 252}
    | {*range(240, 247), *range(310, 314), 390, 391, 392, 409, 419, 429, 439}
)

_LIST_ROW = re.compile(r"(\S+)\s+(\S+)\s+(\d+)\s*\Z")


def wanted_ids(settings: Settings) -> tuple[int, ...]:
    """The ids for our readings, those added by id, and those of the counters file; each once."""
    ids = [*DEFAULT_IDS, *_added_ids(settings.fields), *_counters_file_ids(settings.counters)]
    ids += [_BEHIND_OWN_COUNTERS.get(field_id, field_id) for field_id in settings.dcgm_fields]
    if "dcgm_legacy" in settings.families:
        ids += sorted(_COSTLY_IDS)
    return tuple(dict.fromkeys(ids))


def _added_ids(fields: Sequence[str]) -> Iterator[int]:
    for text in fields:
        digits = text.removeprefix("+")
        if digits.isascii() and digits.isdigit():
            yield int(digits)


def _counters_file_ids(path: str) -> Iterator[int]:
    """Only what is asked for is looked up here; the family that exports it says what is wrong with the file."""
    if not path:
        return
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError:
        return
    known = {**ids_by_name(), "DCGM_EXP_P2P_STATUS": P2P_BITMAP_ID}
    for line in text.splitlines():
        name = line.partition(",")[0].strip(' "')
        if name in known:
            yield known[name]


def parse_field_list(text: str) -> frozenset[int]:
    """The ids in the output of `dcgmi dmon -l`, under whichever banner and in whichever columns."""
    rows = (_LIST_ROW.match(line.strip()) for line in text.splitlines())
    return frozenset(int(row[3]) for row in rows if row)


def usable_ids(wanted: Iterable[int], known: frozenset[int]) -> tuple[int, ...]:
    """Of the wanted ids those this DCGM has; binary fields have no text and are never asked for."""
    fields = dcgm_fields()
    known = known or EARLIEST_IDS  # a list we cannot read says nothing
    return tuple(
        field_id
        for field_id in wanted
        if field_id in known and not (field_id in fields and fields[field_id].kind == "b")
    )


def profiling_steps(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The id lists to try, one after the other, until the profiling module accepts one."""
    steps = [
        tuple(ids),
        tuple(i for i in ids if i not in PROFILING_IDS or i in BASIC_PROFILING_IDS),
        tuple(i for i in ids if i not in PROFILING_IDS),
    ]
    return list(dict.fromkeys(steps))


def id_lists(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """`ids` cut into lists that fit one stream each; every list has the UUID, which names its rows."""
    others = [field_id for field_id in ids if field_id != UUID_ID]
    size = MAX_IDS - 1
    return [(UUID_ID, *others[at : at + size]) for at in range(0, len(others), size)] or [(UUID_ID,)]
