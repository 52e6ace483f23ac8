"""What to do about NVIDIA's GPUs, in NVIDIA's own commands: next steps of findings and alerts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuscope.model.vendor import Advice, ExporterRules
from gpuscope.vendors.nvidia.xids import CONTAINED_MEMORY_XIDS, DRIVER_XIDS, HARDWARE_XIDS, NVLINK_XIDS

# The alert rules over the metrics of dcgm-exporter and nvidia_gpu_exporter, for people who keep those.
#
# A row has the kind of a check and its expression there. What an exporter does not give has no row: owners
# and processes, and for dcgm-exporter all XIDs but the last of a GPU. `%(NAME)s` is a threshold of the
# checks.

GPU_CELSIUS: Final = 90
"""For exporters that do not give a card's own threshold; data-centre cards slow down at 86 to 95."""

_DCGM_XID = "DCGM_FI_DEV_XID_ERRORS"


def _dcgm_xids(codes: Iterable[int]) -> str:
    """The gauge keeps the last XID for ever: only one that was not there ten minutes ago counts."""
    listed = " or ".join(f"{_DCGM_XID} == {code}" for code in sorted(codes))
    return f"({listed}) unless {_DCGM_XID} == {_DCGM_XID} offset %(XID_ALERT_DURATION)s"


def _smi_xids(codes: Iterable[int]) -> str:
    listed = "|".join(map(str, sorted(codes)))
    return f'time() - nvidia_smi_xid_last_timestamp_seconds{{xid=~"{listed}"}} < %(XID_ALERT_SECONDS)s'


def _dropped(metric: str) -> str:
    return f"count by (instance) ({metric}) < max_over_time(count by (instance) ({metric})[6h:5m])"


def _down(metric: str) -> str:
    """Only targets of jobs that have this exporter's series: others are not GPU hosts."""
    return f"up == 0 and on (job) group by (job) (last_over_time({metric}[1d:5m]))"


_DCGM: Final = (
    ("node_down", _down("DCGM_FI_DEV_GPU_TEMP"), ""),
    ("gpu_count_dropped", _dropped("DCGM_FI_DEV_GPU_TEMP"), "GPUs that answer: {{ $value }}."),
    ("xid_hardware", _dcgm_xids(HARDWARE_XIDS), "XID {{ $value }}."),
    ("xid_nvlink", _dcgm_xids(NVLINK_XIDS), "XID {{ $value }}."),
    ("xid_driver", _dcgm_xids(DRIVER_XIDS), "XID {{ $value }}."),
    ("xid_contained", _dcgm_xids(CONTAINED_MEMORY_XIDS), "XID {{ $value }}."),
    ("ecc_uncorrected",
     f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL > 0 unless on (instance, UUID) {_DCGM_XID} == 94",
     "Errors: {{ $value }}."),
    ("ecc_corrected_rate",
     "increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL[1h]) > %(CORRECTED_ERRORS_PER_HOUR)s", ""),
    ("row_remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE == 1", ""),
    ("pages_retiring",
     "DCGM_FI_DEV_RETIRED_PENDING == 1 or DCGM_FI_DEV_RETIRED_SBE + DCGM_FI_DEV_RETIRED_DBE "
     ">= %(RETIRED_PAGES)s", ""),
    ("hw_thermal", "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) / 1e9 > 0.1", ""),
    ("power_capped", "rate(DCGM_FI_DEV_POWER_VIOLATION[30m]) / 1e9 > 0.9", ""),
    ("hot", f"DCGM_FI_DEV_GPU_TEMP > {GPU_CELSIUS}", "{{ $value }} °C."),
    ("memory_hot", "DCGM_FI_DEV_MEMORY_TEMP > %(HOT_MEMORY_CELSIUS)s", "{{ $value }} °C."),
    ("pcie_replays",
     "rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m]) * 60 > %(PCIE_REPLAYS_PER_MINUTE)s", ""),
    ("nvlink_errors",
     "increase(DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL[1h]) > 0 "
     "or increase(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[1h]) > 0", ""),
    ("memory_full",
     "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) "
     "> %(MEMORY_FULL_RATIO)s", "{{ $value | humanizePercentage }} is used."),
    ("held_idle", "DCGM_FI_DEV_FB_USED > 1000 and max_over_time(DCGM_FI_DEV_GPU_UTIL[15m]) == 0",
     "{{ $value }} MiB are held."),
)  # fmt: skip

_NVIDIA_SMI: Final = (
    ("node_down", _down("nvidia_smi_gpu_info"), ""),
    ("source_down", "nvidia_smi_command_exit_code != 0", "nvidia-smi ended with {{ $value }}."),
    ("gpu_count_dropped", _dropped("nvidia_smi_gpu_info"), "GPUs that answer: {{ $value }}."),
    ("xid_hardware", _smi_xids(HARDWARE_XIDS), "XID {{ $labels.xid }}."),
    ("xid_nvlink", _smi_xids(NVLINK_XIDS), "XID {{ $labels.xid }}."),
    ("xid_driver", _smi_xids(DRIVER_XIDS), "XID {{ $labels.xid }}."),
    ("xid_contained", _smi_xids(CONTAINED_MEMORY_XIDS), "XID {{ $labels.xid }}."),
    ("ecc_uncorrected",
     "nvidia_smi_ecc_errors_uncorrected_volatile_total > 0 "
     'unless on (instance, uuid) nvidia_smi_xid_last_timestamp_seconds{xid="94"}', "Errors: {{ $value }}."),
    ("ecc_corrected_rate",
     "increase(nvidia_smi_ecc_errors_corrected_volatile_total[1h]) > %(CORRECTED_ERRORS_PER_HOUR)s", ""),
    ("row_remap_pending", "nvidia_smi_remapped_rows_pending == 1", ""),
    ("row_remap_failed", "nvidia_smi_remapped_rows_failure == 1", ""),
    ("spare_rows_out", "nvidia_smi_remapped_rows_histogram_none > 0", ""),
    ("ecc_mode_change", "nvidia_smi_ecc_mode_current != nvidia_smi_ecc_mode_pending", ""),
    ("hw_thermal",
     "rate(nvidia_smi_clocks_event_reasons_counters_hw_thermal_slowdown_seconds[5m]) > 0.1", ""),
    ("sw_thermal",
     "rate(nvidia_smi_clocks_event_reasons_counters_sw_thermal_slowdown_seconds[5m]) > 0.5", ""),
    ("power_brake",
     "rate(nvidia_smi_clocks_event_reasons_counters_hw_power_brake_slowdown_seconds[5m]) > 0.1", ""),
    ("power_capped",
     "rate(nvidia_smi_clocks_event_reasons_counters_sw_power_cap_seconds[30m]) > 0.9", ""),
    ("hot",
     "nvidia_smi_temperature_gpu_tlimit <= 0 or (nvidia_smi_temperature_gpu "
     f"> {GPU_CELSIUS} unless nvidia_smi_temperature_gpu_tlimit)", ""),
    ("memory_hot", "nvidia_smi_temperature_memory > %(HOT_MEMORY_CELSIUS)s", "{{ $value }} °C."),
    ("pcie_degraded", "nvidia_smi_pcie_link_width_current < nvidia_smi_pcie_link_width_max",
     "Lanes: {{ $value }}."),
    ("power_limit_low",
     "nvidia_smi_enforced_power_limit_watts "
     "< %(POWER_LIMIT_SHARE)s * nvidia_smi_power_default_limit_watts", "{{ $value }} W."),
    ("persistence_off", "nvidia_smi_persistence_mode == 0", ""),
    ("memory_full",
     "nvidia_smi_memory_used_bytes / nvidia_smi_memory_total_bytes > %(MEMORY_FULL_RATIO)s",
     "{{ $value | humanizePercentage }} is used."),
)  # fmt: skip

_DCGM_NODE = "{{ if $labels.Hostname }}{{ $labels.Hostname }}{{ else }}{{ $labels.instance }}{{ end }}"
_DCGM_LOOKUPS: Final = {
    "gpu": f"{_DCGM_NODE} GPU {{{{ $labels.gpu }}}} ({{{{ $labels.modelName }}}})",
    "owner": (
        "{{ if $labels.pod }}pod {{ $labels.namespace }}/{{ $labels.pod }}"
        "{{ else }}owner not known: dcgm-exporter gives pods only{{ end }}"
    ),
}
_SMI_LOOKUPS: Final = {
    "gpu": (
        "{{ with printf `nvidia_smi_gpu_info{instance=%q,uuid=%q}` $labels.instance $labels.uuid | query }}"
        "{{ with first . }}{{ $labels.instance }} GPU {{ .Labels.index }} ({{ .Labels.name }}){{ end }}"
        "{{ else }}{{ $labels.instance }} GPU {{ $labels.uuid }}{{ end }}"
    ),
}

EXPORTER_RULES: Final = (
    ExporterRules(
        group="dcgm-exporter",
        metrics="dcgm",
        title="The same over dcgm-exporter's metrics.",
        rows=_DCGM,
        place=f"GPU {{{{ $labels.gpu }}}} of {_DCGM_NODE}",
        lookups=_DCGM_LOOKUPS,
    ),
    ExporterRules(
        group="nvidia-gpu-exporter",
        metrics="nvidia_smi",
        title="The same over nvidia_gpu_exporter's metrics.",
        rows=_NVIDIA_SMI,
        place="GPU {{ $labels.uuid }} of {{ $labels.instance | stripPort }}",
        lookups=_SMI_LOOKUPS,
        gpu_argument="GPU-{{ $labels.uuid }}",
    ),
)


_DRIVER: Final = "run nvidia-smi on the node and read its error; after an upgrade of the driver reboot the node"

ADVICE: Final = Advice(
    next_steps={
        "gpu_lost": "drain the node; do what its last XID says, else power-cycle",
        "failed_jobs": "run dcgmi diag -r 3 on the GPU, then NVIDIA's field diagnostic",
        "ecc_uncorrected": "drain the node, then nvidia-smi -r -i {gpu_list}",
        "ecc_corrected_rate": "watch the card; XID 92 confirms it",
        "power_limit_low": "find out who ran nvidia-smi -pl",
        "clock_stuck": "look for locked clocks (nvidia-smi -rgc, -rac), then reset the GPU",
        "slow_sibling": "move the job and compare; run dcgmi diag",
        "nvlink_down": "nvidia-smi nvlink -s; check the fabric manager, then reset the GPU",
        "nvlink_errors": "check cable or bridge; run NVIDIA's field diagnostic",
        "persistence_off": "systemctl enable --now nvidia-persistenced",
        "orphan_memory": "fuser -v /dev/nvidia*; reset the GPU if nobody is found",
        "source_slow": "switch persistence mode on (nvidia-persistenced); look for NVRM lines in dmesg",
        "gpus_missing": "look for XID 79 in dmesg; power-cycle the node; reseat the card if it stays away",
        "gpu_count_dropped": "look for XID 79 in dmesg; set --expected-gpus where the number of GPUs is known",
        "unknown_owner": "find out whose it is: nvidia-smi names the process, ps -o user,args -p PID its user",
        "driver_silent": "the driver hangs or is not loaded: nvidia-smi, dmesg; reboot the node if it stays so",
        "contact_support": "collect nvidia-bug-report.sh and contact support",
    },
    source_steps={
        "nvml": _DRIVER,
        "nvidia-smi": _DRIVER,
        "dcgm": "check DCGM's service: systemctl status nvidia-dcgm, dcgmi discovery -l",
    },
    exporter_rules=EXPORTER_RULES,
)
