"""What can be wrong with a GPU: lost, XIDs, memory errors, heat, power, PCIe, NVLink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpuscope.health.check import Check, Live, Severity, Subject, flag, is_above, is_at
from gpuscope.health.facts import GpuFacts
from gpuscope.health.thresholds import (
    BUSY_RATIO,
    CORRECTED_ERRORS_PER_HOUR,
    FAILED_JOBS,
    FAN_STOPPED_CELSIUS,
    HOT_MARGIN_CELSIUS,
    HOT_MEMORY_CELSIUS,
    MEMORY_FULL_RATIO,
    PCIE_LOADED_RATIO,
    PCIE_REPLAYS_PER_MINUTE,
    POWER_LIMIT_SHARE,
    RECENT_XID_SECONDS,
    RETIRED_PAGES,
    SLOW_SIBLING_SHARE,
    XID_ALERT_SECONDS,
)
from gpuscope.health.throttles import HINDERING
from gpuscope.health.xids import APPLICATION_XIDS, DRIVER_XIDS, HARDWARE_XIDS, NVLINK_XIDS
from gpuscope.readings import ABSENT

_DOWN = flag("gpuscope_gpu_up", 0)
_REMAP_FAILED, _REMAP_PENDING = flag("gpuscope_gpu_row_remap_failed"), flag("gpuscope_gpu_row_remap_pending")
_SRAM = flag("gpuscope_gpu_ecc_sram_threshold_exceeded")
_PERSISTENCE_OFF = flag("gpuscope_gpu_persistence_mode", 0)
_SAME_GPU = "on (instance, uuid)"
_XID_TIMES = "gpuscope_gpu_xid_last_timestamp_seconds"
_MINUTES = "it looks at the last minutes, not at one moment"

_JOB_XIDS = "|".join(map(str, sorted(APPLICATION_XIDS | HARDWARE_XIDS | DRIVER_XIDS | NVLINK_XIDS)))
ENDED_BY_XID: Final = (
    f'max by (instance, uuid) (gpuscope_gpu_xid_last_timestamp_seconds{{xid=~"{_JOB_XIDS}"}} > time() - 300) '
    "- on (instance, uuid) group_right () (last_over_time(gpuscope_process_start_time_seconds[5m]) "
    "unless on (instance, uuid, pid) gpuscope_process_start_time_seconds) > 0"
)
"""Processes that ended within five minutes after an XID of their GPU; the value is how long they had run by
then."""

_REPEATED_XIDS = (
    'increase(gpuscope_gpu_xid_errors_total{xid=~"13|31"}[24h]) '
    '+ (min_over_time(gpuscope_gpu_xid_last_timestamp_seconds{xid=~"13|31"}[24h]) > bool time() - 86400) >= 2'
)
"""A counter appears with the first XID, which `increase` does not see: that one counts if even the oldest of
the times is of the last day."""
WITH_MODEL: Final = (
    "* on (instance, uuid) group_left (model) max by (instance, uuid, model) (gpuscope_gpu_info)"
)
MEAN_CLOCK: Final = f'avg_over_time(gpuscope_gpu_clock_hertz{{clock="sm"}}[10m]) {WITH_MODEL}'
MEDIAN_CLOCK: Final = f"quantile by (instance, model) (0.5, {MEAN_CLOCK})"
"""Of the GPUs of one model in a node: models have different clocks."""
_MEAN_UTILIZATION: Final = f"avg_over_time(gpuscope_gpu_utilization_ratio[10m]) {WITH_MODEL}"
SIBLINGS_BUSY: Final = f"min by (instance, model) ({_MEAN_UTILIZATION}) > {BUSY_RATIO:g}"


def _xids(codes: Iterable[int]) -> tuple[str, Live]:
    """Both forms of: one of these XIDs happened lately."""
    names = frozenset(map(str, codes))

    def live(gpu: GpuFacts, now: float) -> bool:
        seen = gpu.by_label.get(_XID_TIMES, {})
        return any(code in names and now - at < RECENT_XID_SECONDS for code, at in seen.items())

    return _xids_within(codes, RECENT_XID_SECONDS), live


def _xids_within(codes: Iterable[int], seconds: float) -> str:
    listed = "|".join(map(str, sorted(codes)))
    return f'time() - {_XID_TIMES}{{xid=~"{listed}"}} < {seconds:g}'


def _differs(left: str, right: str, wrong: Callable[[float, float], bool]) -> Live:
    def live(gpu: GpuFacts, now: float) -> bool:
        one, other = gpu.number(left), gpu.number(right)
        return one is not ABSENT and other is not ABSENT and wrong(one, other)

    return live


def _has_uncorrected_errors(gpu: GpuFacts, now: float) -> bool:
    return is_above(gpu.number("gpuscope_gpu_ecc_errors_total", "uncorrected,volatile"), 0)


def _retires_pages(gpu: GpuFacts, now: float) -> bool:
    retired = gpu.by_label.get("gpuscope_gpu_retired_pages", {})
    pending = is_at(gpu.number("gpuscope_gpu_retired_pages_pending"), 1)
    return pending or (bool(retired) and sum(retired.values()) >= RETIRED_PAGES)


def _is_throttled(gpu: GpuFacts, now: float) -> bool:
    reasons = gpu.by_label.get("gpuscope_gpu_throttle_reason", {})
    return any(reasons.get(reason) == 1 for reason in HINDERING)


def _is_hot(gpu: GpuFacts, now: float) -> bool:
    margin = gpu.number("gpuscope_gpu_temperature_margin_celsius")
    if margin is not ABSENT:
        return margin <= 0
    degrees = gpu.number("gpuscope_gpu_temperature_celsius", "gpu")
    slowdown = gpu.number("gpuscope_gpu_temperature_threshold_celsius", "slowdown")
    return degrees is not ABSENT and slowdown is not ABSENT and degrees >= slowdown - HOT_MARGIN_CELSIUS


def _has_hot_memory(gpu: GpuFacts, now: float) -> bool:
    degrees = gpu.number("gpuscope_gpu_temperature_celsius", "memory")
    highest = gpu.number("gpuscope_gpu_temperature_threshold_celsius", "memory_max")
    hot = HOT_MEMORY_CELSIUS if highest is ABSENT else highest - HOT_MARGIN_CELSIUS
    return degrees is not ABSENT and degrees >= hot


def _has_low_power_limit(gpu: GpuFacts, now: float) -> bool:
    enforced = gpu.number("gpuscope_gpu_power_limit_watts", "enforced")
    default = gpu.number("gpuscope_gpu_power_limit_watts", "default")
    return enforced is not ABSENT and default is not ABSENT and enforced < POWER_LIMIT_SHARE * default


def _has_stopped_fan(gpu: GpuFacts, now: float) -> bool:
    fans = gpu.by_label.get("gpuscope_gpu_fan_speed_ratio", {})
    degrees = gpu.number("gpuscope_gpu_temperature_celsius", "gpu")
    return 0 in fans.values() and is_above(degrees, FAN_STOPPED_CELSIUS)


def _has_slow_pcie(gpu: GpuFacts, now: float) -> bool:
    width, widest = gpu.number("gpuscope_gpu_pcie_link_width"), gpu.number("gpuscope_gpu_pcie_link_width_max")
    return width is not ABSENT and widest is not ABSENT and width < widest


def _is_outside_fabric(gpu: GpuFacts, now: float) -> bool:
    state, status = gpu.number("gpuscope_gpu_fabric_state"), gpu.number("gpuscope_gpu_fabric_status")
    return state is not ABSENT and (state in (1, 2) or (state == 3 and status is not ABSENT and status != 0))


def _is_full(gpu: GpuFacts, now: float) -> bool:
    used, total = gpu.number("gpuscope_gpu_memory_used_bytes"), gpu.number("gpuscope_gpu_memory_total_bytes")
    return used is not ABSENT and total is not ABSENT and total > 0 and used / total > MEMORY_FULL_RATIO


def _throttled_rate(reason: str, share: float, window: str) -> str:
    return f'rate(gpuscope_gpu_throttled_seconds_total{{reason="{reason}"}}[{window}]) > {share:g}'


def _gpu(
    kind: str,
    alert: str,
    severity: Severity,
    forms: tuple[str, Live] | str,
    meaning: str,
    next_step: str,
    *,
    for_seconds: float = 0.0,
    inhibited_by: tuple[str, ...] = ("node_down",),
    because: str = "",
    alert_promql: str = "",
) -> Check:
    promql, live = (forms, None) if isinstance(forms, str) else forms
    return Check(
        kind=kind,
        alert=alert,
        subject=Subject.GPU,
        severity=severity,
        promql=promql,
        live=live,
        one_form_because=because if live is None else "",
        alert_promql=alert_promql,
        for_seconds=for_seconds,
        inhibited_by=inhibited_by,
        meaning=meaning,
        next_step=next_step,
    )


def _xid(
    kind: str,
    alert: str,
    severity: Severity,
    codes: frozenset[int],
    meaning: str,
    next_step: str,
    *,
    inhibited_by: tuple[str, ...],
) -> Check:
    return _gpu(
        kind,
        alert,
        severity,
        _xids(codes),
        meaning,
        next_step,
        inhibited_by=inhibited_by,
        alert_promql=_xids_within(codes, XID_ALERT_SECONDS),
    )


_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO
_TEMPERATURE = 'gpuscope_gpu_temperature_celsius{{sensor="{}"}}'
_THRESHOLD = 'gpuscope_gpu_temperature_threshold_celsius{{threshold="{}"}}'

GPU_CHECKS: Final = (
    _gpu("gpu_lost", "GpuNotAnswering", _CRITICAL, _DOWN,
         "The driver does not reach the GPU.",
         "drain the node; do what its last XID says, else power-cycle",
         for_seconds=60),
    _gpu("recovery_action", "GpuRecoveryAction", _CRITICAL,
         ("gpuscope_gpu_recovery_action > 0",
          lambda gpu, now: is_above(gpu.number("gpuscope_gpu_recovery_action"), 0)),
         "The driver says that this GPU needs a recovery.",
         "do it: 1 reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX domain, 6 bus reset, 7 reboot"),
    _xid("xid_hardware", "XidHardware", _CRITICAL, HARDWARE_XIDS,
         "An XID that means broken hardware.",
         "drain the node and do what gpuscope explain xid N says",
         inhibited_by=("recovery_action",)),
    _xid("xid_nvlink", "XidNvlink", _CRITICAL, NVLINK_XIDS,
         "An XID of an NVLink.",
         "look at NVLink counters, at the peer GPU and at the fabric manager",
         inhibited_by=("recovery_action",)),
    _xid("xid_driver", "XidDriver", _CRITICAL, DRIVER_XIDS,
         "An XID of driver or firmware.",
         "drain the node and reset the GPU; update driver and firmware if it returns",
         inhibited_by=("recovery_action",)),
    _xid("xid_application", "XidApplication", _INFO, APPLICATION_XIDS,
         "An XID that a program caused; the GPU is healthy.",
         "tell the job's owner; do not drain the node",
         inhibited_by=("xid_hardware",)),
    _gpu("xid_repeats", "XidRepeats", _WARNING,
         f"{_REPEATED_XIDS} unless on (instance) count by (instance) "
         f"(count by (instance, uuid) ({_REPEATED_XIDS})) > 1",
         "Program errors that only this GPU of its node shows: perhaps it is the GPU.",
         "run dcgmi diag -r 3, then NVIDIA's field diagnostic",
         inhibited_by=("xid_hardware",), because="it counts over a day"),
    _gpu("failed_jobs", "JobsFailOnGpu", _WARNING,
         f"count by (instance, gpu, uuid) (max_over_time(({ENDED_BY_XID})[1d:1m])) >= {FAILED_JOBS}",
         "Several programs ended with an XID on the same GPU within a day: perhaps it is the GPU.",
         "run dcgmi diag -r 3 on the GPU, then NVIDIA's field diagnostic",
         inhibited_by=("xid_hardware",), because="it counts over a day"),
    _gpu("ecc_uncorrected", "EccUncorrected", _CRITICAL,
         ('gpuscope_gpu_ecc_errors_total{error="uncorrected",lifetime="volatile"} > 0',
          _has_uncorrected_errors),
         "Uncorrectable memory errors since the driver was loaded: results of this GPU are suspect.",
         "drain the node, then nvidia-smi -r -i {gpu_list}",
         inhibited_by=("row_remap_failed",)),
    _gpu("ecc_sram_threshold", "EccSramThreshold", _CRITICAL, _SRAM,
         "So many SRAM errors that NVIDIA replaces the card.", "have the card replaced (RMA)"),
    _gpu("ecc_corrected_rate", "EccCorrectedRate", _INFO,
         'increase(gpuscope_gpu_ecc_errors_total{error="corrected",lifetime="volatile"}[1h]) '
         f"> {CORRECTED_ERRORS_PER_HOUR:g}",
         "Many corrected memory errors.", "watch the card; XID 92 confirms it",
         for_seconds=3600, because="it counts over an hour"),
    _gpu("row_remap_pending", "RowRemapPending", _WARNING, _REMAP_PENDING,
         "A memory row is replaced at the next reset.", "reset the GPU at the next maintenance",
         for_seconds=300, inhibited_by=("ecc_uncorrected",)),
    _gpu("row_remap_failed", "RowRemapFailed", _CRITICAL, _REMAP_FAILED,
         "A memory row could not be replaced.", "have the card replaced (RMA)"),
    _gpu("spare_rows_out", "SpareRowsOut", _WARNING,
         ('gpuscope_gpu_row_remap_banks{availability="none"} > 0',
          lambda gpu, now: is_above(gpu.number("gpuscope_gpu_row_remap_banks", "none"), 0)),
         "A memory bank has no spare row left.", "plan a replacement",
         inhibited_by=("row_remap_failed",)),
    _gpu("pages_retiring", "PagesRetiring", _WARNING,
         ("gpuscope_gpu_retired_pages_pending == 1 or sum without (cause) (gpuscope_gpu_retired_pages) "
          f">= {RETIRED_PAGES:g}", _retires_pages),
         "Memory pages wait for a reboot to be retired, or nearly all that may be are.",
         "reboot the node; near 64 retired pages have the card replaced",
         for_seconds=300),
    _gpu("ecc_mode_change", "EccModeChange", _INFO,
         ("gpuscope_gpu_ecc_enabled != gpuscope_gpu_ecc_pending",
          _differs("gpuscope_gpu_ecc_enabled", "gpuscope_gpu_ecc_pending", lambda now, then: now != then)),
         "ECC changes at the next reboot.", "reboot to apply it, or find out who changed it"),
    _gpu("throttled", "GpuThrottled", _INFO,
         (f'gpuscope_gpu_throttle_reason{{reason=~"{"|".join(HINDERING)}"}} == 1', _is_throttled),
         "Something holds the clocks back.", "gpuscope explain throttle REASON says what to do",
         for_seconds=300, inhibited_by=("hw_thermal", "power_brake")),
    _gpu("hw_thermal", "HwThermal", _WARNING, _throttled_rate("hw_thermal_slowdown", 0.1, "5m"),
         "The GPU is too hot and slows down.", "check fans, airflow, dust and thermal paste",
         for_seconds=300, because=_MINUTES),
    _gpu("sw_thermal", "SwThermal", _INFO, _throttled_rate("sw_thermal_slowdown", 0.5, "5m"),
         "The driver keeps the temperature by lowering the clocks.", "improve the cooling; normal for desktops",
         for_seconds=1800, inhibited_by=("hw_thermal",), because=_MINUTES),
    _gpu("hot", "TempMargin", _WARNING,
         ("gpuscope_gpu_temperature_margin_celsius <= 0 or (" + _TEMPERATURE.format("gpu")
          + f" >= ignoring (sensor, threshold) {_THRESHOLD.format('slowdown')} - {HOT_MARGIN_CELSIUS:g} "
          f"unless {_SAME_GPU} gpuscope_gpu_temperature_margin_celsius)", _is_hot),
         "The GPU is about to slow itself down.", "check fans, airflow and dust",
         for_seconds=120, inhibited_by=("hw_thermal",)),
    _gpu("memory_hot", "MemoryHot", _WARNING,
         (_TEMPERATURE.format("memory") + " >= ignoring (sensor, threshold) "
          f"{_THRESHOLD.format('memory_max')} - {HOT_MARGIN_CELSIUS:g} "
          f"or ({_TEMPERATURE.format('memory')} >= {HOT_MEMORY_CELSIUS:g} "
          f"unless {_SAME_GPU} {_THRESHOLD.format('memory_max')})", _has_hot_memory),
         "The GPU's memory is as hot as it may get.", "check thermal pads and airflow",
         for_seconds=300, inhibited_by=("hw_thermal",)),
    _gpu("power_brake", "PowerBrake", _WARNING, _throttled_rate("hw_power_brake_slowdown", 0.1, "5m"),
         "The power supply tells the GPU to slow down.", "check power supplies, cables and the rack's feed",
         for_seconds=300, because=_MINUTES),
    Check(
        kind="power_brake_node", alert="PowerBrakeNode", subject=Subject.NODE, severity=_CRITICAL,
        promql=f"count by (instance) ({_throttled_rate('hw_power_brake_slowdown', 0.1, '5m')}) >= 2",
        one_form_because=_MINUTES, for_seconds=300, inhibited_by=("node_down",),
        meaning="The power supply tells several GPUs of a node to slow down.",
        next_step="check the node's power supplies and the rack's feed",
    ),
    _gpu("power_capped", "PowerCapped", _INFO, _throttled_rate("sw_power_cap", 0.9, "30m"),
         "The GPU runs at its power limit.", "nothing: expected under load",
         for_seconds=1800, inhibited_by=("power_limit_low",), because=_MINUTES),
    _gpu("power_limit_low", "PowerLimitLow", _INFO,
         ('gpuscope_gpu_power_limit_watts{limit="enforced"} < ignoring (limit) '
          f'{POWER_LIMIT_SHARE:g} * gpuscope_gpu_power_limit_watts{{limit="default"}}', _has_low_power_limit),
         "The power limit is below the card's default.", "find out who ran nvidia-smi -pl",
         for_seconds=900),
    _gpu("fan_stopped", "FanStopped", _WARNING,
         (f"gpuscope_gpu_fan_speed_ratio == 0 and {_SAME_GPU} "
          f"{_TEMPERATURE.format('gpu')} > {FAN_STOPPED_CELSIUS:g}", _has_stopped_fan),
         "A fan has stopped although the GPU is warm.", "replace the fan",
         for_seconds=300),
    _gpu("clock_stuck", "ClockStuck", _WARNING,
         'gpuscope_gpu_clock_hertz{clock="sm"} < 0.5 * gpuscope_gpu_clock_max_hertz{clock="sm"} '
         f"and {_SAME_GPU} gpuscope_gpu_utilization_ratio > 0.8 "
         f'unless {_SAME_GPU} gpuscope_gpu_throttle_reason{{reason!="gpu_idle"}} == 1',
         "The GPU works at less than half of its clock, and gives no reason.",
         "look for locked clocks (nvidia-smi -rgc, -rac), then reset the GPU",
         for_seconds=600, inhibited_by=("hw_thermal", "power_brake"),
         because="clocks change within milliseconds: one reading says nothing"),
    _gpu("slow_sibling", "SlowSibling", _WARNING,
         (
             f"{MEAN_CLOCK} < on (instance, model) group_left () {SLOW_SIBLING_SHARE:g} * {MEDIAN_CLOCK} "
             f"and on (instance, model) {SIBLINGS_BUSY}"
         ),
         "The GPU is slower than the others of its model and node under the same load.",
         "move the job and compare; run dcgmi diag",
         for_seconds=900, inhibited_by=("hw_thermal", "sw_thermal", "power_brake", "throttled"),
         because=_MINUTES),
    _gpu("pcie_degraded", "PcieDegraded", _WARNING,
         ("gpuscope_gpu_pcie_link_width < gpuscope_gpu_pcie_link_width_max", _has_slow_pcie),
         "PCIe uses fewer lanes than card and slot have.", "reseat the card; check riser and BIOS",
         for_seconds=600, inhibited_by=("gpu_lost",)),
    _gpu("pcie_generation", "PcieSlowGeneration", _WARNING,
         "gpuscope_gpu_pcie_link_generation < gpuscope_gpu_pcie_link_generation_max "
         f"and {_SAME_GPU} gpuscope_gpu_utilization_ratio > {PCIE_LOADED_RATIO:g}",
         "PCIe runs at a lower generation than card and slot have, under load.",
         "reseat the card; check riser and BIOS",
         for_seconds=600, inhibited_by=("gpu_lost", "pcie_degraded"),
         because="an idle link lowers its generation to save power: one reading says nothing"),
    _gpu("pcie_replays", "PcieReplays", _WARNING,
         f"rate(gpuscope_gpu_pcie_replays_total[5m]) * 60 > {PCIE_REPLAYS_PER_MINUTE:g}",
         "PCIe packets are retransmitted.", "reseat the card; check riser and BIOS",
         for_seconds=600, inhibited_by=("pcie_degraded",), because=_MINUTES),
    _gpu("nvlink_down", "NvlinkDown", _CRITICAL,
         f"gpuscope_gpu_nvlink_up == 0 and {_SAME_GPU} gpuscope_gpu_nvlink_up == 1",
         "An NVLink is down while others of the card are up.",
         "nvidia-smi nvlink -s; check the fabric manager, then reset the GPU",
         for_seconds=300, inhibited_by=("xid_nvlink", "gpu_lost"),
         because="18 links a GPU are too many series for the live picture"),
    _gpu("nvlink_errors", "NvlinkErrors", _WARNING,
         'increase(gpuscope_gpu_nvlink_errors_total{error=~"replay|recovery"}[1h]) > 0 '
         'or rate(gpuscope_gpu_nvlink_errors_total{error=~"crc_.*"}[5m]) > 100',
         "An NVLink reports errors.", "check cable or bridge; run NVIDIA's field diagnostic",
         inhibited_by=("nvlink_down",), because="it counts over an hour"),
    _gpu("fabric_not_ready", "FabricNotReady", _CRITICAL,
         ("gpuscope_gpu_fabric_state == 1 or gpuscope_gpu_fabric_state == 2 or "
          "(gpuscope_gpu_fabric_state == 3 and gpuscope_gpu_fabric_status != 0)", _is_outside_fabric),
         "The GPU has not joined the NVLink fabric: programs over several GPUs fail.",
         "check the fabric manager or IMEX service, then reboot",
         for_seconds=300),
    _gpu("persistence_off", "PersistenceOff", _INFO, _PERSISTENCE_OFF,
         "Persistence mode is off: the first read after a pause takes seconds.",
         "systemctl enable --now nvidia-persistenced",
         for_seconds=3600),
    _gpu("memory_full", "MemoryFull", _INFO,
         ("gpuscope_gpu_memory_used_bytes / gpuscope_gpu_memory_total_bytes "
          f"> {MEMORY_FULL_RATIO:g}", _is_full),
         "The GPU's memory is full: normal for vLLM, JAX and TensorFlow.", "nothing, unless programs fail",
         for_seconds=1800),
)  # fmt: skip
