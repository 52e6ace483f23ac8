"""The series of nvidia-smi's columns: one gauge per column, and `gpu_info` with the identity.

Cells come from nvidia-smi if it is the source, else they are printed from the readings. Options exclude columns
like the exporter's flags; identity columns are always included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from gpuscope.model.readings import Maybe, Snapshot
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import (
    PREFIX,
    GoRegistry,
    MetricName,
    cell_value,
    plain_uuid,
    usable_names,
)
from gpuscope.vendors.nvidia.families.nvidia_smi.table import SMI_COLUMNS, print_cells
from gpuscope.vendors.nvidia.nvidia_values import nvidia_driver, own, says_event_reasons

# Names of nvidia-smi's query fields, and the names that older drivers use for some of them.
#
# `--query-field-names` is checked against them. Newer drivers say "event" where older ones say "throttle";
# metric names depend on it.

EVENT_REASONS: Final = "clocks_event_reasons."
THROTTLE_BITS: Final = "clocks_throttle_reasons."

# Fields without a reading, or exported outside the columns.
_OTHER_FIELDS = """
    uuid index count timestamp hostname driver_version kmd_version driver_model.current driver_model.pending
    pci.domain pci.bus pci.device pcie.link.gen.hostmax addressing_mode
    inforom.checksum_validation gom.current gom.pending edpp_multiplier
    dramEncryption.mode.current dramEncryption.mode.pending
    fabric.status platform.peer_type platform.gpu_fabric_guid
"""


def _known_fields() -> frozenset[str]:
    fields = {column.header.partition(" [")[0] for column in SMI_COLUMNS}
    older = {with_older_name(field) for field in fields}
    return frozenset(fields | older | set(_OTHER_FIELDS.split()))


def with_older_name(field: str) -> str:
    return field.replace(EVENT_REASONS, THROTTLE_BITS, 1) if field.startswith(EVENT_REASONS) else field


def with_newer_name(field: str) -> str:
    return field.replace(THROTTLE_BITS, EVENT_REASONS, 1) if field.startswith(THROTTLE_BITS) else field


KNOWN_FIELDS: Final = _known_fields()


def spell_reasons(cells: dict[str, str], driver: Maybe[str], only: Iterable[str]) -> dict[str, str]:
    """The cells with the field names of this driver's nvidia-smi; a field requested by name keeps its name."""
    asked = [field for field in only if field.startswith((EVENT_REASONS, THROTTLE_BITS))]
    if asked:
        return cells | {
            field: cells[with_newer_name(field)] for field in asked if with_newer_name(field) in cells
        }
    if says_event_reasons(driver):
        return cells
    return {with_older_name(header): cell for header, cell in cells.items()}


Cells = Mapping[str, str]

INFO_LABELS: Final = {  # label -> column, in the order of the help text
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


class SmiColumns:
    """The selected columns and their names: `--query-field-names` and its `-exclude`; `*` is a wildcard."""

    def __init__(self, only: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self._only = frozenset(only)
        self._exclude = [
            re.compile(re.escape(pattern).replace(r"\*", ".*") + r"\Z") for pattern in exclude if pattern
        ]
        self._headers: dict[str, None] = {}
        self._names: dict[str, MetricName] = {}

    def names(self, rows: Iterable[Cells]) -> Mapping[str, MetricName]:
        """Names by header; computed again only when the headers change, which a driver change causes."""
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
    """With `command`, nvidia-smi's own cells of the devices that have them, else cells printed from readings.

    `only` are the fields that were requested by name.
    """
    if command:
        return [cells for device in snapshot.devices if (cells := own(device).smi_cells)]
    driver, count = nvidia_driver(snapshot), len(snapshot.devices)
    return [
        spell_reasons(print_cells(device, driver, count), driver.driver_version, only)
        for device in snapshot.devices
        if not device.lost
    ]


def add_columns(registry: GoRegistry, rows: Sequence[Cells], columns: SmiColumns) -> None:
    names = columns.names(rows)
    for cells in rows:
        labels = (("uuid", plain_uuid(cells.get("uuid", ""))),)
        for header, cell in cells.items():
            if header in names:
                name, multiplier = names[header]
                value = cell_value(header, cell, multiplier)
                if value is not None:
                    registry.add(name, header, value, labels)


def add_info(registry: GoRegistry, rows: Iterable[Cells], snapshot: Snapshot) -> None:
    cuda = nvidia_driver(snapshot).library_versions.get("cuda", "")
    for cells in rows:
        labels = {label: cells.get(column, NOT_GIVEN) for label, column in INFO_LABELS.items()}
        labels["uuid"] = plain_uuid(labels["uuid"])
        labels["cuda_version"] = cuda
        registry.add(PREFIX + "gpu_info", INFO_HELP, 1, labels.items())
