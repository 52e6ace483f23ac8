"""Maps DCGM's field names, old and new, to ids and back.

DCGM 4.6 renamed most fields and kept the old names as aliases. A counters file may use either name, and the
metric is exported under the name in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gpuscope.vendors.nvidia.dcgm_name_table import NAME_TABLE


@cache
def names_by_id() -> dict[int, tuple[str, ...]]:
    """All names of each field, newest first."""
    return dict(_rows())


@cache
def ids_by_name() -> dict[str, int]:
    return {name: field_id for field_id, names in _rows() for name in names}


def _rows() -> Iterator[tuple[int, tuple[str, ...]]]:
    for line in NAME_TABLE.splitlines():
        field_id, *names = line.split()
        yield int(field_id), tuple(name if name.startswith("dcgm_") else "DCGM_FI_" + name for name in names)
