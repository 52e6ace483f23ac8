"""The series that come from nvidia-smi's columns: one gauge per column, and `gpu_info` with the identity.

A device whose source is nvidia-smi brings its cells; for any other they are printed from the readings. Options
leave columns out as the exporter's flags do; the identity columns always stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from gpuscope.metrics.families.nvidia_smi.cell_values import cell_value, plain_uuid
from gpuscope.metrics.families.nvidia_smi.field_names import spell_reasons
from gpuscope.metrics.families.nvidia_smi.go_registry import Collected
from gpuscope.metrics.families.nvidia_smi.naming import PREFIX, MetricName, usable_names
from gpuscope.metrics.families.nvidia_smi.table import print_cells
from gpuscope.readings import ABSENT, Snapshot

Cells = Mapping[str, str]

INFO_LABELS: Final = {  # label -> column, in the order its help text names them
    "uuid": "uuid",
    "name": "name",
    "driver_model_current": "driver_model.current",
    "driver_model_pending": "driver_model.pending",
    "vbios_version": "vbios_version",
    "driver_version": "driver_version",
    "pci_bus_id": "pci.bus_id",
    "serial": "serial",
    "compute_cap": "compute_cap",
    "pci_sub_device_id": "pci.sub_device_id",
    "index": "index",
}
INFO_HELP: Final = f"A metric with a constant '1' value labeled by gpu {', '.join(INFO_LABELS)}, cuda_version."
NOT_GIVEN: Final = "[N/A]"


class Columns:
    """Names of the wanted columns: `--query-field-names` and its `-exclude`, where `*` is any part."""

    def __init__(self, only: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self._only = frozenset(only)
        self._exclude = [
            re.compile(re.escape(pattern).replace(r"\*", ".*") + r"\Z") for pattern in exclude if pattern
        ]
        self._headers: dict[str, None] = {}
        self._names: dict[str, MetricName] = {}

    def names(self, rows: Iterable[Cells]) -> Mapping[str, MetricName]:
        """By header; worked out anew only when the headers changed, which is when the driver did."""
        headers = dict.fromkeys(chain.from_iterable(rows))
        if headers != self._headers:
            self._headers = headers
            self._names = usable_names(filter(self._wants, headers))
        return self._names

    def _wants(self, header: str) -> bool:
        field = header.partition(" [")[0]
        if field in INFO_LABELS.values():
            return True
        if self._only and field not in self._only:
            return False
        return not any(pattern.match(field) for pattern in self._exclude)


def cells_of_devices(snapshot: Snapshot, *, command: bool, only: Sequence[str] = ()) -> list[Cells]:
    """`command`: whether nvidia-smi's own cells are wanted; a device that has none is then left out.

    `only` are the fields asked for by name.
    """
    if command:
        return [device.smi_cells for device in snapshot.devices if device.smi_cells]
    driver, count = snapshot.driver, len(snapshot.devices)
    return [
        spell_reasons(print_cells(device, driver, count), driver.driver_version, only)
        for device in snapshot.devices
        if not device.lost
    ]


def add_columns(collected: Collected, rows: Sequence[Cells], columns: Columns) -> None:
    names = columns.names(rows)
    for cells in rows:
        labels = (("uuid", plain_uuid(cells.get("uuid", ""))),)
        for header, cell in cells.items():
            if header in names:
                name, multiplier = names[header]
                value = cell_value(header, cell, multiplier)
                if value is not None:
                    collected.add(name, header, value, labels)


def add_info(collected: Collected, rows: Iterable[Cells], snapshot: Snapshot) -> None:
    cuda = snapshot.driver.cuda_version
    for cells in rows:
        labels = {label: cells.get(column, NOT_GIVEN) for label, column in INFO_LABELS.items()}
        labels["uuid"] = plain_uuid(labels["uuid"])
        labels["cuda_version"] = "" if cuda is ABSENT else cuda
        collected.add(PREFIX + "gpu_info", INFO_HELP, 1, labels.items())
