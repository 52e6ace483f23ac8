"""What can be wrong with a GPU: lost, XIDs, memory errors, heat, power, PCIe, NVLink."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from gpuscope.judge.checks.check import Check, Severity, Share, Subject
from gpuscope.judge.checks.thresholds import (
    CORRECTED_ERRORS_PER_HOUR,
    FAILED_JOBS,
    FAILED_JOBS_USERS,
    FAN_STOPPED_CELSIUS,
    FULL_RATIO,
    HOT_MARGIN_CELSIUS,
    HOT_MEMORY_CELSIUS,
    LOST_SECONDS,
    MEMORY_FULL_RATIO,
    NVLINK_RECOVERIES_PER_HOUR,
    PCIE_LOADED_RATIO,
    PCIE_REPLAYS_PER_MINUTE,
    POWER_LIMIT_SHARE,
    RECENT_XID_SECONDS,
    RETIRED_PAGES,
    SLOW_SIBLING_SHARE,
)
from gpuscope.model.vendor import ErrorCatalogue, ErrorCheck, catalogues, throttle_reasons

_SAME_GPU = "on (instance, uuid)"
HINDERING: Final = tuple(row.reason for row in throttle_reasons().values() if row.hinders)
"""The throttle reasons to act on, worst first."""
_HINDERED: Final = f'gpuscope_gpu_throttle_reason{{reason=~"{"|".join(HINDERING)}"}} == 1'
_CLOCK_SHARE: Final = 'gpuscope_gpu_clock_hertz{clock="sm"} / gpuscope_gpu_clock_max_hertz{clock="sm"}'


def _recent_ages(catalogue: ErrorCatalogue) -> str:
    """Ages of the errors that end programs, of one vendor."""
    codes = {code for check in catalogue.checks if check.ends_programs for code in check.codes}
    listed = "|".join(sorted(codes, key=lambda code: (len(code), code)))
    return f'{catalogue.age_metric}{{{catalogue.key}=~"{listed}"}}'


ENDED_BY_XID: Final = (
    "(last_over_time(gpuscope_process_age_seconds[5m]) unless on (instance, uuid, pid) "
    f"gpuscope_process_age_seconds) and {_SAME_GPU} "
    f"(min by (instance, uuid) ({' or '.join(map(_recent_ages, catalogues()))}) < 300)"
)
"""Processes that ended within five minutes after an error of their GPU; the value is how long they had run by
then."""
# With a scrape a minute a process that ended so is seen for three minutes: a longer step misses it.
_FAILED: Final = f"max_over_time(({ENDED_BY_XID})[1d:3m])"
_WITH_MODEL: Final = (
    "* on (instance, uuid) group_left (model) max by (instance, uuid, model) (gpuscope_gpu_info)"
)
_BUSY_CLOCK: Final = (
    f'(avg_over_time(gpuscope_gpu_clock_hertz{{clock="sm"}}[10m]) {_WITH_MODEL} '
    f"and {_SAME_GPU} avg_over_time(gpuscope_gpu_utilization_ratio[10m]) > {FULL_RATIO:g})"
)
"""The mean clock of the GPUs that were busy for ten minutes."""
_SIBLINGS: Final = f"on (instance, model) group_left () quantile by (instance, model) (0.5, {_BUSY_CLOCK})"
"""The median of the GPUs of one model in a node: models have different clocks."""


def _throttled_rate(reason: str, share: float, window: str) -> str:
    return f'rate(gpuscope_gpu_throttled_seconds_total{{reason="{reason}"}}[{window}]) > {share:g}'


_gpu: Final = partial(Check, subject=Subject.GPU, inhibited_by=("node_down",))


def _throttled(check: Check) -> Check:
    """What the clocks are below their maximum is lost."""
    return replace(check, share=Share.VALUE, lost=f"1 - {_CLOCK_SHARE} and {_SAME_GPU} ({check.promql})")


def _error(catalogue: ErrorCatalogue, row: ErrorCheck) -> Check:
    happened = f'{catalogue.age_metric}{{{catalogue.key}=~"{"|".join(row.codes)}"}} < {RECENT_XID_SECONDS:g}'
    severity = Severity(row.severity)
    # What explains it, a lost GPU or a recovery action, is an alert a minute later: one message, not two.
    for_seconds = LOST_SECONDS if severity is Severity.CRITICAL else 0.0
    return _gpu(
        row.kind, row.alert, severity, happened, row.meaning, row.next_step,
        for_seconds=for_seconds, inhibited_by=row.inhibited_by, value_is_age=True,
    )  # fmt: skip


ERROR_KINDS: Final = frozenset(row.kind for catalogue in catalogues() for row in catalogue.checks)
"""Checks about errors that happened: events, not states."""
_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO
_TEMPERATURE = 'gpuscope_gpu_temperature_celsius{{sensor="{}"}}'
_THRESHOLD = 'gpuscope_gpu_temperature_threshold_celsius{{threshold="{}"}}'

GPU_CHECKS: Final = (
    _gpu("gpu_lost", "GpuNotAnswering", _CRITICAL, "gpuscope_gpu_up == 0",
         "The driver does not reach the GPU.",
         "drain the node; do what its last error says, else power-cycle",
         for_seconds=LOST_SECONDS, share=Share.WHOLE),
    _gpu("recovery_action", "GpuRecoveryAction", _CRITICAL,
         "gpuscope_gpu_recovery_action > 0",
         "The driver says that this GPU needs a recovery.",
         "do it: 1 reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX domain, 6 bus reset, 7 reboot",
         inhibited_by=("node_down", "gpu_lost")),
    *(_error(catalogue, row) for catalogue in catalogues() for row in catalogue.checks),
    _gpu("failed_jobs", "JobsFailOnGpu", _WARNING,
         f"count by (instance, gpu, uuid) ({_FAILED}) >= {FAILED_JOBS} and {_SAME_GPU} "
         f"count by (instance, uuid) (count by (instance, uuid, user) ({_FAILED})) >= {FAILED_JOBS_USERS}",
         "Programs of several users ended with an XID on the same GPU within a day: perhaps it is the GPU.",
         "run the vendor's diagnostic on the GPU",
         inhibited_by=("xid_hardware",)),
    _gpu("ecc_uncorrected", "EccUncorrected", _CRITICAL,
         'gpuscope_gpu_ecc_errors_total{error="uncorrected",lifetime="volatile"} > 0 '
         f'unless {_SAME_GPU} gpuscope_gpu_xid_errors_total{{xid="94"}} > 0',
         "Uncorrectable memory errors since the driver was loaded: results of this GPU are suspect.",
         "drain the node, then reset the GPU",
         inhibited_by=("row_remap_failed", "xid_hardware")),
    _gpu("ecc_sram_threshold", "EccSramThreshold", _CRITICAL,
         "gpuscope_gpu_ecc_sram_threshold_exceeded == 1",
         "So many SRAM errors that NVIDIA replaces the card.", "have the card replaced (RMA)"),
    _gpu("ecc_corrected_rate", "EccCorrectedRate", _INFO,
         'increase(gpuscope_gpu_ecc_errors_total{error="corrected",lifetime="volatile"}[1h]) '
         f"> {CORRECTED_ERRORS_PER_HOUR:g}",
         "Many corrected memory errors.", "watch the card",
         for_seconds=3600),
    _gpu("row_remap_pending", "RowRemapPending", _WARNING,
         "gpuscope_gpu_row_remap_pending == 1",
         "A memory row is replaced at the next reset.", "reset the GPU at the next maintenance",
         for_seconds=300, inhibited_by=("ecc_uncorrected",)),
    _gpu("row_remap_failed", "RowRemapFailed", _CRITICAL,
         "gpuscope_gpu_row_remap_failed == 1",
         "A memory row could not be replaced.", "have the card replaced (RMA)"),
    _gpu("spare_rows_out", "SpareRowsOut", _WARNING,
         'gpuscope_gpu_row_remap_banks{availability="none"} > 0',
         "A memory bank has no spare row left.", "plan a replacement",
         inhibited_by=("row_remap_failed",)),
    _gpu("pages_retiring", "PagesRetiring", _WARNING,
         "gpuscope_gpu_retired_pages_pending == 1 or sum without (cause) (gpuscope_gpu_retired_pages) "
         f">= {RETIRED_PAGES:g}",
         "Memory pages wait for a reboot to be retired, or nearly all that may be are.",
         "reboot the node; near 64 retired pages have the card replaced",
         for_seconds=300),
    _gpu("ecc_mode_change", "EccModeChange", _INFO,
         "gpuscope_gpu_ecc_enabled != gpuscope_gpu_ecc_pending",
         "ECC changes at the next reboot.", "reboot to apply it, or find out who changed it"),
    _throttled(_gpu("throttled", "GpuThrottled", _INFO, _HINDERED,
         "Something holds the clocks back.", "gpuscope explain throttle REASON says what to do",
         for_seconds=300, inhibited_by=("hw_thermal", "power_brake"))),
    _throttled(_gpu("hw_thermal", "HwThermal", _WARNING, _throttled_rate("hw_thermal_slowdown", 0.1, "5m"),
         "The GPU is too hot and slows down.", "check fans, airflow, dust and thermal paste",
         for_seconds=300)),
    _throttled(_gpu("sw_thermal", "SwThermal", _INFO, _throttled_rate("sw_thermal_slowdown", 0.5, "5m"),
         "The driver keeps the temperature by lowering the clocks.", "improve the cooling; normal for desktops",
         for_seconds=1800, inhibited_by=("hw_thermal",))),
    _gpu("hot", "TempMargin", _WARNING,
         "gpuscope_gpu_temperature_margin_celsius <= 0 or (" + _TEMPERATURE.format("gpu")
         + f" >= ignoring (sensor, threshold) {_THRESHOLD.format('slowdown')} - {HOT_MARGIN_CELSIUS:g} "
         f"unless {_SAME_GPU} gpuscope_gpu_temperature_margin_celsius)",
         "The GPU is about to slow itself down.", "check fans, airflow and dust",
         for_seconds=120, inhibited_by=("hw_thermal",)),
    _gpu("memory_hot", "MemoryHot", _WARNING,
         _TEMPERATURE.format("memory") + " >= ignoring (sensor, threshold) "
         f"{_THRESHOLD.format('memory_max')} - {HOT_MARGIN_CELSIUS:g} "
         f"or ({_TEMPERATURE.format('memory')} >= {HOT_MEMORY_CELSIUS:g} "
         f"unless {_SAME_GPU} {_THRESHOLD.format('memory_max')})",
         "The GPU's memory is as hot as it may get.", "check thermal pads and airflow",
         for_seconds=300, inhibited_by=("hw_thermal",)),
    _throttled(_gpu("power_brake", "PowerBrake", _WARNING,
         _throttled_rate("hw_power_brake_slowdown", 0.1, "5m"),
         "The power supply tells the GPU to slow down.", "check power supplies, cables and the rack's feed",
         for_seconds=300)),
    Check(
        kind="power_brake_node", alert="PowerBrakeNode", subject=Subject.NODE, severity=_CRITICAL,
        promql=f"count by (instance) ({_throttled_rate('hw_power_brake_slowdown', 0.1, '5m')}) >= 2",
        for_seconds=300, inhibited_by=("node_down",),
        meaning="The power supply tells several GPUs of a node to slow down.",
        next_step="check the node's power supplies and the rack's feed",
    ),
    _gpu("power_capped", "PowerCapped", _INFO, _throttled_rate("sw_power_cap", 0.9, "30m"),
         "The GPU runs at its power limit.", "nothing: expected under load",
         for_seconds=1800, inhibited_by=("power_limit_low",)),
    _gpu("power_limit_low", "PowerLimitLow", _INFO,
         'gpuscope_gpu_power_limit_watts{limit="enforced"} < ignoring (limit) '
         f'{POWER_LIMIT_SHARE:g} * gpuscope_gpu_power_limit_watts{{limit="default"}}',
         "The power limit is below the card's default.", "find out who lowered it",
         for_seconds=900),
    _gpu("fan_stopped", "FanStopped", _WARNING,
         f"gpuscope_gpu_fan_speed_ratio == 0 and {_SAME_GPU} "
         f"{_TEMPERATURE.format('gpu')} > {FAN_STOPPED_CELSIUS:g}",
         "A fan has stopped although the GPU is warm.", "replace the fan",
         for_seconds=300),
    _gpu("clock_stuck", "ClockStuck", _WARNING,
         'gpuscope_gpu_clock_hertz{clock="sm"} < 0.5 * gpuscope_gpu_clock_max_hertz{clock="sm"} '
         f"and {_SAME_GPU} gpuscope_gpu_utilization_ratio > 0.8 "
         f'unless {_SAME_GPU} gpuscope_gpu_throttle_reason{{reason!="gpu_idle"}} == 1',
         "The GPU works at less than half of its clock, and gives no reason.",
         "look for locked clocks, then reset the GPU",
         for_seconds=600, inhibited_by=("hw_thermal", "power_brake")),
    _gpu("slow_sibling", "SlowSibling", _WARNING,
         f"{_BUSY_CLOCK} / {_SIBLINGS} < {SLOW_SIBLING_SHARE:g}",
         "The GPU is slower than the others of its model and node that are as busy.",
         "move the job and compare; run the vendor's diagnostic",
         for_seconds=900, inhibited_by=("hw_thermal", "sw_thermal", "power_brake", "throttled"),
         share=Share.VALUE, lost=f"1 - ({_BUSY_CLOCK} / {_SIBLINGS} < {SLOW_SIBLING_SHARE:g})"),
    _gpu("pcie_degraded", "PcieDegraded", _WARNING,
         "gpuscope_gpu_pcie_link_width < gpuscope_gpu_pcie_link_width_max",
         "PCIe uses fewer lanes than card and slot have.", "reseat the card; check riser and BIOS",
         for_seconds=600, inhibited_by=("gpu_lost",)),
    _gpu("pcie_generation", "PcieSlowGeneration", _WARNING,
         "gpuscope_gpu_pcie_link_generation < gpuscope_gpu_pcie_link_generation_max "
         f"and {_SAME_GPU} gpuscope_gpu_utilization_ratio > {PCIE_LOADED_RATIO:g}",
         "PCIe runs at a lower generation than card and slot have, under load.",
         "reseat the card; check riser and BIOS",
         for_seconds=600, inhibited_by=("gpu_lost", "pcie_degraded")),
    _gpu("pcie_replays", "PcieReplays", _WARNING,
         f"rate(gpuscope_gpu_pcie_replays_total[5m]) * 60 > {PCIE_REPLAYS_PER_MINUTE:g}",
         "PCIe packets are retransmitted.", "reseat the card; check riser and BIOS",
         for_seconds=600, inhibited_by=("pcie_degraded",)),
    _gpu("nvlink_down", "NvlinkDown", _CRITICAL,
         f"gpuscope_gpu_nvlink_up == 0 and {_SAME_GPU} gpuscope_gpu_nvlink_up == 1",
         "An NVLink is down while others of the card are up.",
         "check the fabric manager, then reset the GPU",
         for_seconds=300, inhibited_by=("xid_nvlink", "gpu_lost")),
    _gpu("nvlink_errors", "NvlinkErrors", _WARNING,
         'gpuscope_gpu_nvlink_errors_total{error=~"replay|recovery"} > 0 '
         'and increase(gpuscope_gpu_nvlink_errors_total{error=~"replay|recovery"}[1h]) > 0 '
         'or (gpuscope_gpu_nvlink_errors_total{error=~"crc_.*"} > 0 '
         'and rate(gpuscope_gpu_nvlink_errors_total{error=~"crc_.*"}[5m]) > 100) '
         'or increase(gpuscope_gpu_nvlink5_errors_total{error="recovery"}[1h]) '
         f"> {NVLINK_RECOVERIES_PER_HOUR:g}",
         "An NVLink reports errors.", "check cable or bridge; run the vendor's field diagnostic",
         inhibited_by=("nvlink_down",)),
    _gpu("fabric_not_ready", "FabricNotReady", _CRITICAL,
         "gpuscope_gpu_fabric_state == 1 or gpuscope_gpu_fabric_state == 2 or "
         "(gpuscope_gpu_fabric_state == 3 and gpuscope_gpu_fabric_status != 0)",
         "The GPU has not joined the NVLink fabric: programs over several GPUs fail.",
         "check the fabric manager or IMEX service, then reboot",
         for_seconds=300),
    _gpu("persistence_off", "PersistenceOff", _INFO, "gpuscope_gpu_persistence_mode == 0",
         "Persistence mode is off: the first read after a pause takes seconds.",
         "switch persistence mode on",
         for_seconds=3600),
    _gpu("memory_full", "MemoryFull", _INFO,
         "gpuscope_gpu_memory_used_bytes / gpuscope_gpu_memory_total_bytes "
         f"> {MEMORY_FULL_RATIO:g}",
         "The GPU's memory is full: normal for vLLM, JAX and TensorFlow.", "nothing, unless programs fail",
         for_seconds=1800),
)  # fmt: skip
