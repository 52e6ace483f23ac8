"""Names of nvidia-smi's query fields, and the names that older drivers use for some of them.

`--query-field-names` is checked against them. Newer drivers say "event" where older ones say "throttle"; metric
names depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuscope.model.readings import Maybe
from gpuscope.vendors.nvidia.driver_releases import says_event_reasons
from gpuscope.vendors.nvidia.families.nvidia_smi.table import SMI_COLUMNS

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
