"""The fields that the stream requests, and the parser of DCGM's own list of fields.

One unknown id ends the whole run, so the requested ids are first checked against `dcgmi dmon -l`. The stream
requests as many profiling ids as the GPUs allow: all, then those that every profiled GPU has, then none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpuscope.base.settings import Settings
from gpuscope.vendors.nvidia.dcgm_fields import (
    DRIVER_READINGS,
    FIELD_READINGS,
    P2P_BITMAP_ID,
    PROFILING_IDS,
    TEXT_READINGS,
    dcgm_fields,
    ids_by_name,
)

UUID_ID = 54
INDEX_ID = 52
CUDA_VERSION_ID = 5
MAX_IDS = 127  # in one `-e` list; with more, DCGM reports "Bad parameter"

# The driver measures PCIe throughput for 20 ms per call and direction, too long for every second and GPU. The
# profiling fields have the same number without that cost.
_COSTLY_IDS = frozenset({200, 201})

# Fields that the dcgm families export but no reading contains: XID, NVLink errors and throughput, vGPU licence.
_FAMILY_IDS = (230, 254, 409, 419, 429, 439, 449, 526)

# dcgm-exporter's own counters by id -> the field they are computed from.
_OWN_COUNTER_SOURCES = {9001: 230, 9002: 112, 9004: P2P_BITMAP_ID}

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

# The fields that the exporters of 2018 requested from DCGM 1.x; every DCGM has them.
EARLIEST_IDS = frozenset(
    {UUID_ID, 100, 101, 140, 150, 155, 202, 203, 204, 206, 207, 230, 251, 252}
    | {*range(240, 247), *range(310, 314), 390, 391, 392, 409, 419, 429, 439}
)

_LIST_ROW = re.compile(r"(\S+)\s+(\S+)\s+(\d+)\s*\Z")


def wanted_ids(settings: Settings) -> tuple[int, ...]:
    """The ids of our readings, of --fields and of the counters file, without duplicates."""
    ids = [*DEFAULT_IDS, *_added_ids(settings.fields), *_counters_file_ids(settings.counters)]
    ids += [_OWN_COUNTER_SOURCES.get(field_id, field_id) for field_id in settings.dcgm_fields]
    if "dcgm_legacy" in settings.families:
        ids += sorted(_COSTLY_IDS)
    return tuple(dict.fromkeys(ids))


def _added_ids(fields: Sequence[str]) -> Iterator[int]:
    for text in fields:
        digits = text.removeprefix("+")
        if digits.isascii() and digits.isdigit():
            yield int(digits)


def _counters_file_ids(path: str) -> Iterator[int]:
    """The ids of known names. Errors in the file are reported by the family that exports it."""
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
    """The ids in the output of `dcgmi dmon -l`, independent of its banner and columns."""
    rows = (_LIST_ROW.match(line.strip()) for line in text.splitlines())
    return frozenset(int(row[3]) for row in rows if row)


def usable_ids(wanted: Iterable[int], known: frozenset[int]) -> tuple[int, ...]:
    """The requested ids that this DCGM has, without binary fields, which dmon cannot print."""
    fields = dcgm_fields()
    known = known or EARLIEST_IDS  # the list could not be parsed
    return tuple(
        field_id
        for field_id in wanted
        if field_id in known and not (field_id in fields and fields[field_id].kind == "b")
    )


def profiling_steps(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The id lists to try in order until the profiling module accepts one."""
    steps = [
        tuple(ids),
        tuple(i for i in ids if i not in PROFILING_IDS or i in BASIC_PROFILING_IDS),
        tuple(i for i in ids if i not in PROFILING_IDS),
    ]
    return list(dict.fromkeys(steps))


def id_lists(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """`ids` split into lists for one stream each; every list has the UUID, which identifies the rows."""
    others = [field_id for field_id in ids if field_id != UUID_ID]
    size = MAX_IDS - 1
    return [(UUID_ID, *others[at : at + size]) for at in range(0, len(others), size)] or [(UUID_ID,)]
