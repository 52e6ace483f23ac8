"""DCGM_EXP_GPU_HEALTH_STATUS computed from readings: 0 pass, 10 warning, 20 failure.

Uses DCGM's rules, over the last minute where DCGM does: PCIE by replays, MEM by uncorrected ECC errors, pages
and rows, NVLINK by links down and errors, THERMAL and POWER by violation times, ALL by XIDs of the last five
minutes and lost GPUs. PMU, MCU, SM, INFOROM and DRIVER need DCGM itself and have no sample here; neither has a
watch whose readings are absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuscope.model.readings import ABSENT, Device, ErrorTotal, Snapshot
from gpuscope.vendors.nvidia.families.dcgm.field_values import receives_xids
from gpuscope.vendors.nvidia.nvidia_values import own

PASS, WARN, FAIL = 0, 10, 20
MAX_RETIRED_PAGES = 63
MAX_REMAPPED_ROWS = 512
MAX_REPLAYS_A_MINUTE = 8
XID_SECONDS = 300.0
MINUTE = 60.0

# XIDs that DCGM reports as a failure of the whole GPU.
FATAL_XIDS = {
    48: "DCGM_FR_XID_ERROR",
    74: "DCGM_FR_XID_ERROR",
    79: "DCGM_FR_FALLEN_OFF_BUS",
    95: "DCGM_FR_UNCONTAINED_ERROR",
    119: "DCGM_FR_XID_ERROR",
    120: "DCGM_FR_XID_ERROR",
    140: "DCGM_FR_XID_ERROR",
}


class HealthIncident(NamedTuple):
    watch: str
    result: int
    code: str


def _passed(watch: str) -> HealthIncident:
    return HealthIncident(watch, PASS, "DCGM_FR_OK")


class HealthWatch:
    """Keeps the last minute of every counter whose increase is checked."""

    def __init__(self) -> None:
        self._history: dict[tuple[str, str], deque[tuple[float, float]]] = {}

    def incidents(self, device: Device, snapshot: Snapshot) -> Iterator[HealthIncident]:
        yield from self._of_pcie(device, snapshot.taken_at)
        yield from self._of_nvlink(device, snapshot.taken_at)
        yield from _of_memory(device)
        violations = own(device).violation_seconds
        for watch, policy, code in (
            ("THERMAL", "thermal", "DCGM_FR_CLOCK_THROTTLE_THERMAL"),
            ("POWER", "power", "DCGM_FR_CLOCK_THROTTLE_POWER"),
        ):
            if policy in violations:
                grew = self._growth(device, watch, violations[policy], snapshot.taken_at) > 0
                yield HealthIncident(watch, WARN, code) if grew else _passed(watch)
        yield from _of_xids(device, snapshot)

    def _growth(self, device: Device, what: str, value: float, at: float) -> float:
        history = self._history.setdefault((device.uuid, what), deque())
        while history and (history[-1][0] > at or history[-1][1] > value):
            history.pop()  # the clock was set back, or the driver was reloaded
        history.append((at, value))
        while history[0][0] < at - MINUTE:
            history.popleft()
        return value - history[0][1]

    def _of_pcie(self, device: Device, at: float) -> Iterator[HealthIncident]:
        if device.pcie_replays is not ABSENT:
            replays = self._growth(device, "PCIE", device.pcie_replays, at)
            too_many = replays > MAX_REPLAYS_A_MINUTE
            yield HealthIncident("PCIE", WARN, "DCGM_FR_PCI_REPLAY_RATE") if too_many else _passed("PCIE")

    def _of_nvlink(self, device: Device, at: float) -> Iterator[HealthIncident]:
        if not device.link_up and not device.link_errors:
            return
        grown = {
            error: self._growth(device, "NVLINK " + error, count, at)
            for error, count in _errors_by_kind(device.link_errors).items()
        }
        if any(up == 0 for up in device.link_up.values()):
            yield HealthIncident("NVLINK", FAIL, "DCGM_FR_NVLINK_DOWN")
        elif grown.get("replay", 0) > 0 or grown.get("recovery", 0) > 0:
            yield HealthIncident("NVLINK", FAIL, "DCGM_FR_NVLINK_ERROR_CRITICAL")
        elif any(count > 0 for count in grown.values()):
            yield HealthIncident("NVLINK", WARN, "DCGM_FR_NVLINK_ERROR_THRESHOLD")
        else:
            yield _passed("NVLINK")


def _errors_by_kind(errors: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for (_, error), count in errors.items():
        totals[error] = totals.get(error, 0.0) + count
    return totals


def _of_memory(device: Device) -> Iterator[HealthIncident]:
    uncorrected = device.ecc_errors.get(("uncorrected", "volatile"), ABSENT)
    mine = own(device)
    pages, rows = mine.retired_pages, mine.remapped_rows
    if uncorrected is ABSENT and not pages and not rows:
        return
    if uncorrected is not ABSENT and uncorrected > 0:
        yield HealthIncident("MEM", FAIL, "DCGM_FR_VOLATILE_DBE_DETECTED")
    elif mine.row_remap_failed is not ABSENT and mine.row_remap_failed:
        yield HealthIncident("MEM", FAIL, "DCGM_FR_ROW_REMAP_FAILURE")
    elif sum(pages.values()) >= MAX_RETIRED_PAGES:
        yield HealthIncident("MEM", FAIL, "DCGM_FR_RETIRED_PAGES_LIMIT")
    elif rows.get("uncorrectable", 0) >= MAX_REMAPPED_ROWS:
        yield HealthIncident("MEM", WARN, "DCGM_FR_UNCORRECTABLE_ROW_REMAP_LIMIT")
    elif mine.retired_pages_pending is not ABSENT and mine.retired_pages_pending:
        yield HealthIncident("MEM", WARN, "DCGM_FR_PENDING_PAGE_RETIREMENTS")
    else:
        yield _passed("MEM")


def _of_xids(device: Device, snapshot: Snapshot) -> Iterator[HealthIncident]:
    fatal = [total for total in snapshot.errors if _is_fatal(total, device, snapshot.taken_at)]
    if device.lost:
        yield HealthIncident("ALL", FAIL, "DCGM_FR_FALLEN_OFF_BUS")
    elif fatal:
        yield HealthIncident("ALL", FAIL, FATAL_XIDS[int(max(fatal, key=lambda total: total.last_at).code)])
    elif receives_xids(snapshot):
        yield _passed("ALL")


def _is_fatal(total: ErrorTotal, device: Device, now: float) -> bool:
    recent = now - total.last_at <= XID_SECONDS
    return recent and total.gpu_uuid == device.uuid and int(total.code) in FATAL_XIDS
