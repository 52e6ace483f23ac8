"""Hand-written series for the unit tests of the shipped rules: for each alert some that fire, some that do not.

Series are in promtool's notation, one sample a minute. `{G}`, `{N}`, `{P}`, `{D}`, `{S}` stand for the labels
of a GPU, a node, a process, a GPU of dcgm-exporter and of nvidia_gpu_exporter (`LABELS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LABELS: Final = {
    "{N}": 'instance="node1:9400"',
    "{G}": 'instance="node1:9400",gpu="0",uuid="GPU-1"',
    "{H}": 'instance="node1:9400",gpu="1",uuid="GPU-2"',
    "{P}": 'instance="node1:9400",gpu="0",uuid="GPU-1",pid="7",command="train.py",user="alice",namespace="ml",'
    'pod="train"',
    "{Q}": 'instance="node1:9400",gpu="1",uuid="GPU-2",pid="8",command="train.py",user="alice",namespace="ml",'
    'pod="train"',
    "{O}": 'instance="node1:9400",gpu="0",uuid="GPU-1",user="alice",namespace="ml",pod="train"',
    "{D}": 'instance="node1:9400",gpu="0",UUID="GPU-1",Hostname="node1",modelName="NVIDIA H100"',
    "{S}": 'instance="node1:9835",uuid="u1"',
}


PORT: Final = '{{N},device="mlx5_0",port="1"}'
RAIL: Final = 'gpuscope_infiniband_rail_info{{G},device="mlx5_0"}'
_RANK: Final = 'nccl_job="10.0.0.1:7",uid="1000",host="10.0.0.1",host_pid="7",rank="0"'
NCCL_RANK: Final = f'gpuscope_nccl_rank_info{{{{G}},pid="7",{_RANK}}}'
STALLED: Final = f'gpuscope_nccl_stalled_rank_seconds{{{{N}},{_RANK},reason="behind",user="alice"}}'


@dataclass(frozen=True, slots=True)
class Case:
    fires: Mapping[str, str]
    """Series and their values."""
    quiet: Mapping[str, str]
    at: str = "15m"
    labels: str = ""
    """Labels of the alert besides those of its GPU, node or process."""
    detail: str = ""
    """The expected end of the description."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Annotations that differ from the usual ones."""
    own_labels: str = ""
    """All labels of the alert, where they are not those of its subject."""
    also_fires: Mapping[str, str] = field(default_factory=dict)
    """Series of another exporter that fire too; empty if there are none."""


def _gauge(metric: str, bad: float, good: float, at: str = "15m", detail: str = "") -> Case:
    """A gauge of a GPU without further labels."""
    return Case(
        {f"{metric}{{{{G}}}}": f"{bad:g}x200"}, {f"{metric}{{{{G}}}}": f"{good:g}x200"}, at, detail=detail
    )


def _throttled(reason: str, bad: float, good: float, at: str) -> Case:
    series = f'gpuscope_gpu_throttled_seconds_total{{{{G}},reason="{reason}"}}'
    return Case({series: f"0+{bad:g}x200"}, {series: f"0+{good:g}x200"}, at, labels=f'reason="{reason}"')


def _xid(code: int, other: int, meaning: str, next_step: str) -> Case:
    return Case(
        {f'{XID_AGE}{{{{G}},xid="{code}"}}': "0+60x20"},
        {f'{XID_AGE}{{{{G}},xid="{other}"}}': "0+60x20", f'{XID_AGE}{{{{H}},xid="{code}"}}': "3600+60x20"},
        "5m", labels=f'xid="{code}"', detail=f"XID {code}, 5m 0s ago: {meaning}",
        expected={"next_step": next_step},
    )  # fmt: skip


def _node(metric: str, bad: str, good: str, at: str = "15m", labels: str = "", detail: str = "") -> Case:
    more = f",{labels}" if labels else ""
    series = f"{metric}{{{{N}}{more}}}"
    return Case({series: bad}, {series: good}, at, labels=labels, detail=detail)


def _failed(pid: int, user: str) -> str:
    return f'gpuscope_process_age_seconds{{{{G}},pid="{pid}",user="{user}"}}'


def _waits(metric: str, share: float, detail: str = "") -> Case:
    """A process that shows a cause while its GPU waits, and while it does not."""
    series, busy = f"{metric}{{{{P}}}}", "gpuscope_gpu_utilization_minute_ratio{{G}}"
    process = {series: f"{share:g}x40", "gpuscope_process_age_seconds{{P}}": "0+60x40",
               "gpuscope_process_read_bytes_total{{P}}": "0+6e9x40"}  # fmt: skip
    return Case({**process, busy: "0.2x40"}, {**process, busy: "0.9x40"}, "26m", detail=detail)


def _ranks(watts: float) -> dict[str, str]:
    """Two GPUs of one pod at full utilisation; the second one works."""
    return {
        "gpuscope_gpu_power_minute_watts{{G}}": f"{watts:g}x20",
        "gpuscope_gpu_power_minute_watts{{H}}": "600x20",
        'gpuscope_gpu_power_limit_watts{{G},limit="enforced"}': "700x20",
        'gpuscope_gpu_power_limit_watts{{H},limit="enforced"}': "700x20",
        "gpuscope_gpu_utilization_minute_ratio{{G}}": "1x20",
        "gpuscope_gpu_utilization_minute_ratio{{H}}": "1x20",
        "gpuscope_process_age_seconds{{P}}": "900+60x20",
        "gpuscope_process_age_seconds{{Q}}": "900+60x20",
        'gpuscope_process_info{{P},program="ml/train/main"}': "1x20",
        'gpuscope_process_info{{Q},program="ml/train/main"}': "1x20",
    }


def _queue(reason: str) -> dict[str, str]:
    return {
        'gpuscope_slurm_gpus{{N},gres="gpu",model="h100",state="idle"}': "3x40",
        'gpuscope_slurm_partition_gpus_requested{{N},partition="gpu",gres="gpu",model="h100"}': "8x40",
        f'gpuscope_slurm_partition_jobs_pending{{{{N}},partition="gpu",reason="{reason}"}}': "2x40",
    }


def _siblings(*hertz: float) -> dict[str, str]:
    """The SM clocks of GPUs that work."""
    names = ("{G}", "{H}", OTHER_GPU)
    return {
        **{
            f'gpuscope_gpu_clock_hertz{{{name},clock="sm"}}': f"{one:g}x40"
            for name, one in zip(names, hertz, strict=True)
        },
        **{f"gpuscope_gpu_utilization_ratio{{{name}}}": "1x40" for name in names},
    }


OTHER_GPU = 'instance="node1:9400",gpu="2",uuid="GPU-3"'
INFO_H = 'gpuscope_gpu_info{{H},node="node1",model="NVIDIA H100"}'
INFO_3 = f'gpuscope_gpu_info{{{OTHER_GPU},node="node1",model="NVIDIA H100"}}'
XID_AGE = "gpuscope_gpu_xid_age_seconds"
XID_31 = XID_AGE + '{{G},xid="31"}'
ECC = "gpuscope_gpu_ecc_errors_total"
TEMPERATURE = "gpuscope_gpu_temperature_celsius"
THRESHOLD = "gpuscope_gpu_temperature_threshold_celsius"
LIMIT = "gpuscope_gpu_power_limit_watts"
USED, TOTAL = "gpuscope_gpu_memory_used_bytes{{G}}", "gpuscope_gpu_memory_total_bytes{{G}}"

AGENT = 'gpuscope_agent_info{{N},node="node1",job="gpu"}'

NODE_CASES: Final[dict[str, Case]] = {
    # A dead exporter of another job on the same host is not a host that is down.
    "HostDown": Case(
        {'up{{N},job="gpu"}': "1x5 0x20", AGENT: "1x5 stale"},
        {'up{{N},job="gpu"}': "1x25", AGENT: "1x25", 'up{instance="db:9187",job="postgres"}': "0x25"},
        "16m", 'job="gpu"', "Target node1:9400 of job gpu."),
    "TargetDown": Case(
        {'up{instance="node2:9400",job="gpu"}': "0x25", AGENT: "1x25"},
        {'up{instance="db:9187",job="postgres"}': "0x25", AGENT: "1x25"}, "6m",
        own_labels='instance="node2:9400",job="gpu"',
        expected={"summary": "node2: A scrape target of a job of agents has never answered as one",
                  "node": "node2:9400"}),
    "AgentStale": _node("gpuscope_agent_snapshot_age_seconds", "0+60x20", "1x20", "5m",
                        detail="They are 5m 0s old."),
    "SourceDown": Case(
        {'gpuscope_source_up{{N},source="kubelet"}': "0x20"}, {'gpuscope_source_up{{N},source="nvml"}': "1x20"},
        "6m", 'source="kubelet"', "Source kubelet.",
        expected={"next_step": "check the kubelet and its socket /var/lib/kubelet/pod-resources/kubelet.sock"}),
    "SourceSlow": _node("gpuscope_source_duration_seconds", "8x20", "0.1x20", "11m", 'source="nvml"',
                        "Source nvml: 8s."),
    "GpusMissing": Case({"gpuscope_gpus_seen{{N}}": "7x20", "gpuscope_gpus_expected{{N}}": "8x20",
                         "gpuscope_gpu_up{{G}}": "1x20"},
                        # A GPU that is lost has an alert of its own.
                        {"gpuscope_gpus_seen{{N}}": "7x20", "gpuscope_gpus_expected{{N}}": "8x20",
                         "gpuscope_gpu_up{{G}}": "0x20"}, "3m",
                        detail="GPUs that are missing: 1 of 8."),
    "GpuCountDropped": _node("gpuscope_gpus_seen", "8x5 7x20", "7x20", "15m", detail="GPUs that answer: 7."),
    "HostMemoryLow": Case(
        {"node_memory_MemAvailable_bytes{{N}}": "5x20", "node_memory_MemTotal_bytes{{N}}": "100x20"},
        {"node_memory_MemAvailable_bytes{{N}}": "50x20", "node_memory_MemTotal_bytes{{N}}": "100x20"}, "6m",
        detail="5% is available."),
    "DiskFilling": Case(
        {'node_filesystem_avail_bytes{{N},mountpoint="/"}': "5x20",
         'node_filesystem_size_bytes{{N},mountpoint="/"}': "100x20"},
        {'node_filesystem_avail_bytes{{N},mountpoint="/"}': "50x20",
         'node_filesystem_size_bytes{{N},mountpoint="/"}': "100x20",
         'node_filesystem_avail_bytes{{N},mountpoint="/snap/core"}': "0x20",
         'node_filesystem_size_bytes{{N},mountpoint="/snap/core"}': "100x20",
         'node_filesystem_readonly{{N},mountpoint="/snap/core"}': "1x20"},
        "11m", 'mountpoint="/"', "/."),
    "ClockSkew": _node("node_timex_offset_seconds", "0.1x20", "0.001x20", "11m",
                       detail="It is off by 100ms."),
}  # fmt: skip

_POWER_CYCLE: Final = (
    "drain the node and power-cycle it (a reset cannot reach the GPU); if it returns, reseat or replace"
)
GPU_CASES: Final[dict[str, Case]] = {
    # The processes of a lost GPU are gone with it; who used it ten minutes ago is still named.
    "GpuNotAnswering": Case(
        {"gpuscope_gpu_up{{G}}": "1x2 0x20", "gpuscope_process_memory_bytes{{P}}": "1x2 stale",
         f'{XID_AGE}{{{{G}},xid="79"}}': "0+60x20", f'{XID_AGE}{{{{G}},xid="74"}}': "60+60x20"},
        {"gpuscope_gpu_up{{G}}": "1x20"}, "11m",
        detail="XID 79 came before: The GPU does not answer on PCIe any more.",
        expected={"next_step": _POWER_CYCLE}),
    "GpuRecoveryAction": _gauge("gpuscope_gpu_recovery_action", 2, 0, "1m", "Recovery action 2."),
    "XidHardware": _xid(
        79, 13, "The GPU does not answer on PCIe any more.",
        _POWER_CYCLE),
    "XidNvlink": _xid(
        74, 79, "An NVLink failed, or the GPU at its other end did (Ampere, Hopper).",
        "look at the peer's XIDs and NVLink counters; reset both GPUs or reboot; if it stays, call the vendor"),
    "XidDriver": _xid(
        119, 79, "The GPU's system processor does not answer the driver.",
        "drain and reset the GPU, else power-cycle the node; update the driver if it returns"),
    "XidApplication": _xid(
        13, 79, "A kernel went out of bounds or ran an illegal instruction.",
        "run the program under compute-sanitizer; if the same GPC and TPC fail again, run dcgmi diag -r 3"),
    "XidContained": _xid(
        94, 79, "An uncorrectable memory error was contained: it hit one program only.",
        "restart that program; reset the GPU at the next maintenance"),
    # Not for the programs of one user: his own mistake fails on every GPU.
    "JobsFailOnGpu": Case(
        {XID_31: "_x7 0+60x4 0+60x4 0+60x20", _failed(1, "alice"): "0+60x7 stale",
         _failed(2, "bob"): "0+60x12 stale", _failed(3, "alice"): "0+60x17 stale"},
        {XID_31: "_x7 0+60x4 0+60x4 0+60x20", _failed(1, "alice"): "0+60x7 stale",
         _failed(2, "alice"): "0+60x12 stale", _failed(3, "alice"): "0+60x17 stale"},
        "25m", detail="Programs: 3."),
    "EccUncorrected": Case(
        {f'{ECC}{{{{G}},error="uncorrected",lifetime="volatile"}}': "2x20"},
        {f'{ECC}{{{{G}},error="uncorrected",lifetime="volatile"}}': "2x20",  # contained
         'gpuscope_gpu_xid_errors_total{{G},xid="94"}': "1x20",
         f'{ECC}{{{{G}},error="uncorrected",lifetime="aggregate"}}': "5x20"},
        "1m", 'error="uncorrected",lifetime="volatile"', "Errors: 2."),
    "EccSramThreshold": Case(
        {"gpuscope_gpu_ecc_sram_threshold_exceeded{{G}}": "1x20",
         "gpuscope_process_memory_bytes{{P}}": "1x2 stale"},
        {"gpuscope_gpu_ecc_sram_threshold_exceeded{{G}}": "0x20"}, "15m",
        expected={"owner": "no process seen in the last 10 minutes"}),
    "EccCorrectedRate": Case(
        {f'{ECC}{{{{G}},error="corrected",lifetime="volatile"}}': "0+20x200"},
        {f'{ECC}{{{{G}},error="corrected",lifetime="volatile"}}': "0+1x200"},
        "150m", 'error="corrected",lifetime="volatile"'),
    "RowRemapPending": _gauge("gpuscope_gpu_row_remap_pending", 1, 0, "6m"),
    "RowRemapFailed": _gauge("gpuscope_gpu_row_remap_failed", 1, 0, "1m"),
    "SpareRowsOut": Case({'gpuscope_gpu_row_remap_banks{{G},availability="none"}': "1x20"},
                         {'gpuscope_gpu_row_remap_banks{{G},availability="none"}': "0x20",
                          'gpuscope_gpu_row_remap_banks{{G},availability="max"}': "640x20"},
                         "1m", 'availability="none"'),
    "PagesRetiring": Case({'gpuscope_gpu_retired_pages{{G},cause="sbe"}': "40x20",
                           'gpuscope_gpu_retired_pages{{G},cause="dbe"}': "21x20"},
                          {'gpuscope_gpu_retired_pages{{G},cause="sbe"}': "40x20",
                           "gpuscope_gpu_retired_pages_pending{{G}}": "0x20"}, "6m"),
    "EccModeChange": Case({"gpuscope_gpu_ecc_enabled{{G}}": "1x20", "gpuscope_gpu_ecc_pending{{G}}": "0x20"},
                          {"gpuscope_gpu_ecc_enabled{{G}}": "1x20", "gpuscope_gpu_ecc_pending{{G}}": "1x20"},
                          "1m"),
    "GpuThrottled": Case({'gpuscope_gpu_throttle_reason{{G},reason="sw_thermal_slowdown"}': "1x20"},
                         {'gpuscope_gpu_throttle_reason{{G},reason="sw_power_cap"}': "1x20"}, "6m",
                         'reason="sw_thermal_slowdown"', "Reason: sw_thermal_slowdown."),
    "HwThermal": _throttled("hw_thermal_slowdown", 12, 3, "15m"),
    "SwThermal": _throttled("sw_thermal_slowdown", 40, 20, "40m"),
    "TempMargin": Case(
        {f'{TEMPERATURE}{{{{G}},sensor="gpu"}}': "88x20",
         f'{THRESHOLD}{{{{G}},threshold="slowdown"}}': "90x20"},
        {f'{TEMPERATURE}{{{{G}},sensor="gpu"}}': "88x20", f'{THRESHOLD}{{{{G}},threshold="slowdown"}}': "90x20",
         "gpuscope_gpu_temperature_margin_celsius{{G}}": "5x20"}, "3m"),
    "MemoryHot": Case(
        {f'{TEMPERATURE}{{{{G}},sensor="memory"}}': "94x20",
         f'{THRESHOLD}{{{{G}},threshold="memory_max"}}': "95x20"},
        {f'{TEMPERATURE}{{{{G}},sensor="memory"}}': "80x20",
         f'{THRESHOLD}{{{{G}},threshold="memory_max"}}': "95x20"}, "6m", detail="94 °C."),
    "PowerBrake": _throttled("hw_power_brake_slowdown", 12, 3, "15m"),
    "PowerBrakeNode": Case(
        {'gpuscope_gpu_throttled_seconds_total{{G},reason="hw_power_brake_slowdown"}': "0+12x200",
         'gpuscope_gpu_throttled_seconds_total{{H},reason="hw_power_brake_slowdown"}': "0+12x200"},
        {'gpuscope_gpu_throttled_seconds_total{{G},reason="hw_power_brake_slowdown"}': "0+12x200"}, "15m"),
    "PowerCapped": _throttled("sw_power_cap", 59, 30, "70m"),
    "PowerLimitLow": Case({f'{LIMIT}{{{{G}},limit="enforced"}}': "300x20",
                           f'{LIMIT}{{{{G}},limit="default"}}': "700x20"},
                          {f'{LIMIT}{{{{G}},limit="enforced"}}': "700x20",
                           f'{LIMIT}{{{{G}},limit="default"}}': "700x20"}, "16m"),
    "FanStopped": Case({'gpuscope_gpu_fan_speed_ratio{{G},fan="0"}': "0x20",
                        f'{TEMPERATURE}{{{{G}},sensor="gpu"}}': "75x20"},
                       {'gpuscope_gpu_fan_speed_ratio{{G},fan="0"}': "0x20",
                        f'{TEMPERATURE}{{{{G}},sensor="gpu"}}': "35x20"}, "6m", 'fan="0"'),
    "ClockStuck": Case(
        {'gpuscope_gpu_clock_hertz{{G},clock="sm"}': "3e8x20",
         'gpuscope_gpu_clock_max_hertz{{G},clock="sm"}': "2e9x20",
         "gpuscope_gpu_utilization_ratio{{G}}": "1x20"},
        {'gpuscope_gpu_clock_hertz{{G},clock="sm"}': "3e8x20",
         'gpuscope_gpu_clock_max_hertz{{G},clock="sm"}': "2e9x20",
         "gpuscope_gpu_utilization_ratio{{G}}": "1x20",
         'gpuscope_gpu_throttle_reason{{G},reason="sw_power_cap"}': "1x20"}, "11m", 'clock="sm"'),
    "SlowSibling": Case(
        {**_siblings(1e9, 2e9, 2e9), INFO_H: "1x40", INFO_3: "1x40"},
        {**_siblings(1e9, 2e9, 2e9), INFO_H: "1x40", INFO_3: "1x40",
         "gpuscope_gpu_utilization_ratio{{G}}": "0.1x40"}, "30m", 'clock="sm",model="NVIDIA H100"'),
    "PcieDegraded": Case(
        {"gpuscope_gpu_pcie_link_width{{G}}": "8x20", "gpuscope_gpu_pcie_link_width_max{{G}}": "16x20"},
        {"gpuscope_gpu_pcie_link_width{{G}}": "16x20", "gpuscope_gpu_pcie_link_width_max{{G}}": "16x20"},
        "11m", detail="Lanes: 8."),
    "PcieSlowGeneration": Case(
        {"gpuscope_gpu_pcie_link_generation{{G}}": "3x20", "gpuscope_gpu_pcie_link_generation_max{{G}}": "5x20",
         "gpuscope_gpu_utilization_ratio{{G}}": "0.9x20"},
        {"gpuscope_gpu_pcie_link_generation{{G}}": "1x20", "gpuscope_gpu_pcie_link_generation_max{{G}}": "5x20",
         "gpuscope_gpu_utilization_ratio{{G}}": "0x20"}, "11m", detail="Generation 3."),
    "PcieReplays": Case({"gpuscope_gpu_pcie_replays_total{{G}}": "0+20x30"},
                        {"gpuscope_gpu_pcie_replays_total{{G}}": "0+2x30"}, "20m"),
    "NvlinkDown": Case(
        {'gpuscope_gpu_nvlink_up{{G},link="3"}': "0x20", 'gpuscope_gpu_nvlink_up{{G},link="4"}': "1x20"},
        {'gpuscope_gpu_nvlink_up{{G},link="3"}': "0x20"}, "6m", 'link="3"', "Link 3."),
    "NvlinkErrors": Case(
        {'gpuscope_gpu_nvlink_errors_total{{G},link="3",error="replay"}': "0x5 4x20"},
        {'gpuscope_gpu_nvlink_errors_total{{G},link="3",error="crc_flit"}': "0x5 4x20"},
        "10m", 'link="3",error="replay"', "Link 3, replay."),
    "RailDown": Case(
        {RAIL: "1x20", f"gpuscope_infiniband_port_up{PORT}": "1x3 0x20",
         f"gpuscope_infiniband_link_downs_total{PORT}": "0x3 1x20"},
        {RAIL: "1x20", f"gpuscope_infiniband_port_up{PORT}": "0x20",  # never cabled
         f"gpuscope_infiniband_link_downs_total{PORT}": "0x20"},
        "10m", 'device="mlx5_0"', "Port mlx5_0."),
    "RailSlow": Case(
        {RAIL: "1x20", "gpuscope_infiniband_pcie_link_width{{N},device=\"mlx5_0\"}": "8x20",
         "gpuscope_infiniband_pcie_link_width_max{{N},device=\"mlx5_0\"}": "16x20"},
        {RAIL: "1x20", "gpuscope_infiniband_pcie_link_width{{N},device=\"mlx5_0\"}": "16x20",
         "gpuscope_infiniband_pcie_link_width_max{{N},device=\"mlx5_0\"}": "16x20"},
        "10m", 'device="mlx5_0"', "Port mlx5_0."),
    "LinkFlaps": Case(
        {RAIL: "1x70", f"gpuscope_infiniband_link_downs_total{PORT}": "0x30 5x40"},
        {RAIL: "1x70", f"gpuscope_infiniband_link_downs_total{PORT}": "0x30 1x40"},
        "60m", 'device="mlx5_0"', "Port mlx5_0."),
    "LinkErrors": Case(
        {RAIL: "1x90", f"gpuscope_infiniband_port_errors_total{PORT}": "0+5x90"},
        {RAIL: "1x90", f"gpuscope_infiniband_port_errors_total{PORT}": "0x30 500x60"},  # a touched cable
        "80m", 'device="mlx5_0"', "Port mlx5_0."),
    "FabricNotReady": Case(
        {"gpuscope_gpu_fabric_state{{G}}": "3x20", "gpuscope_gpu_fabric_status{{G}}": "1x20"},
        {"gpuscope_gpu_fabric_state{{G}}": "3x20", "gpuscope_gpu_fabric_status{{G}}": "0x20"}, "6m"),
    "PersistenceOff": _gauge("gpuscope_gpu_persistence_mode", 0, 1, "61m"),
    "MemoryFull": Case({USED: "99x40", TOTAL: "100x40"}, {USED: "90x40", TOTAL: "100x40"}, "31m",
                       detail="99% is used."),
}  # fmt: skip

IDLE, ACTIVE = "gpuscope_process_idle_seconds", "gpuscope_process_active"
TOGETHER = {
    'gpuscope_process_info{{P},program="ml/train/main"}': "1x40",
    'gpuscope_process_info{{Q},program="ml/train/main"}': "1x40",
}
APART = {
    'gpuscope_process_info{{P},program="ml/train/one"}': "1x40",
    'gpuscope_process_info{{Q},program="ml/train/two"}': "1x40",
}
USE_CASES: Final[dict[str, Case]] = {
    "GpuHung": Case({"gpuscope_gpu_hung_seconds{{G}}": "0+60x40"},
                    {"gpuscope_gpu_hung_seconds{{G}}": "0x40"}, "16m", detail="For 16m 0s."),
    "JobHangs": Case(
        {STALLED: "0+60x40", NCCL_RANK: "1x40", "gpuscope_process_memory_bytes{{P}}": "1x40"},
        {STALLED: "0x40", NCCL_RANK: "1x40", "gpuscope_process_memory_bytes{{P}}": "1x40"},
        "26m", detail="Rank 0, for 26m 0s.", own_labels='{O},pid="7",rank="0",reason="behind"'),
    "GpuWaitsForRank": Case(_ranks(150), _ranks(600), "16m"),
    "GpuWaitsForDisk": _waits("gpuscope_process_io_wait_ratio", 0.5, "50% of the time."),
    "GpuWaitsForNetwork": _waits("gpuscope_process_network_wait_ratio", 0.75, "75% of the time."),
    "GpuWaitsForData": _waits("gpuscope_process_busiest_thread_ratio", 0.95),
    "GpuUnused": Case({"gpuscope_gpu_free_for_seconds{{G}}": "90000+60x80"},
                      {"gpuscope_gpu_free_for_seconds{{G}}": "0+60x80"}, "61m", detail="For 1d 2h 1m 0s."),
    "HeldIdle": Case({f"{IDLE}{{{{P}}}}": "0+60x120"}, {f"{IDLE}{{{{P}}}}": "0x120"}, "70m",
                     detail="Idle for 1h 10m 0s."),
    "AllocatedUnused": Case(
        {'gpuscope_allocation_used{{G},namespace="ml",pod="notebook"}': "0x70",
         'gpuscope_gpu_processes{{G},state="idle"}': "0x70"},
        {'gpuscope_allocation_used{{G},namespace="ml",pod="notebook"}': "0x70"},  # its processes are not known
        "65m",
        own_labels='{G},namespace="ml",pod="notebook"',
        expected={"owner": "pod ml/notebook",
                  "summary": "pod ml/notebook, GPU 0 of node1: The GPU was given to a pod or job that has no "
                  "process on it"}),
    "OnlySomeGpusWork": Case(
        {f"{ACTIVE}{{{{P}}}}": "0x40", f"{IDLE}{{{{P}}}}": "0+60x40", f"{ACTIVE}{{{{Q}}}}": "1x40", **TOGETHER},
        {f"{ACTIVE}{{{{P}}}}": "0x40", f"{IDLE}{{{{P}}}}": "0+60x40", f"{ACTIVE}{{{{Q}}}}": "1x40", **APART},
        "32m"),
    "OrphanMemory": Case(
        {"gpuscope_gpu_unlisted_memory_bytes{{G}}": "4294967296x40",
         "gpuscope_gpu_utilization_ratio{{G}}": "0x40"},
        {"gpuscope_gpu_unlisted_memory_bytes{{G}}": "4294967296x40",
         "gpuscope_gpu_utilization_ratio{{G}}": "0.5x40"}, "31m", detail="4GiB."),
    "MemoryLeak": Case(
        {"gpuscope_process_memory_bytes{{P}}": "0+1048576x90", TOTAL: "104857600x90"},
        # A second model that is loaded once.
        {"gpuscope_process_memory_bytes{{P}}": "1048576x50 73400320x40", TOTAL: "104857600x90"}, "60m",
        detail="It needs 180MiB in two hours."),
    "LongRunning": Case({"gpuscope_process_age_seconds{{P}}": "700000+60x20"},
                        {"gpuscope_process_age_seconds{{P}}": "5000+60x20"}, "5m",
                        detail="It has run for 8d 2h 31m 40s."),
}  # fmt: skip

_STATE, _FLAG = 'gpuscope_slurm_node_state{{{{N}},node="n{}",state="{}"}}', "gpuscope_slurm_node_flag"
_WAITING = 'gpuscope_slurm_partition_jobs_pending{{N},partition="p",reason="Resources"}'
_DEPENDS = 'gpuscope_slurm_partition_jobs_pending{{N},partition="p",reason="Dependency"}'
_RUNNING = 'gpuscope_slurm_jobs{{N},state="running"}'
_IDLE_NODE = {_STATE.format(1, "idle"): "1x90"}
_BARE = 'instance="node1:9400",gpu="0",uuid="GPU-1",pid="7",command="train.py",user="bob"'
_OF_BOB = {
    "summary": "bob, train.py (PID 7), GPU 0 of node1: A process uses a GPU of a Slurm node, and Slurm did not "
    "allocate the GPU to its job",
    "owner": "bob",
}


def _stranger() -> dict[str, str]:
    return {
        f"gpuscope_process_memory_bytes{{{_BARE}}}": "1x30",
        f"gpuscope_process_age_seconds{{{_BARE}}}": "0+60x30",
    }


SLURM_CASES: Final[dict[str, Case]] = {
    "SlurmDown": Case({"gpuscope_slurm_up{{N}}": "0x30"},
                      {"gpuscope_slurm_up{{N}}": "1x30", "slurm_nodes_idle{{N}}": "5x30"}, "20m",
                      also_fires={"slurm_nodes_idle{{N}}": "5x10 stale"}),
    # The node that Slurm calls down is named, not the one whose agent reads Slurm.
    "SlurmNodesDown": Case({_STATE.format(1, "down"): "1x30", _STATE.format(2, "down"): "0x30",
                            _FLAG + '{{N},node="n1",flag="fail"}': "1x30"},
                           {_STATE.format(1, "down"): "0x30", "slurm_nodes_down{{N}}": "0x30",
                            "slurm_nodes_fail{{N}}": "0x30"}, "16m", own_labels='{N},node="n1"',
                           detail="Node n1."),
    "SlurmDrained": Case({_FLAG + '{{N},node="n1",flag="drain"}': "1x1500"},
                         {"slurm_nodes_drain{{N}}": "0x1500"}, "1441m", own_labels='{N},node="n1"',
                         detail="Node n1."),
    "UsedUnallocated": Case(
        {**_stranger(), "gpuscope_gpu_unallocated_processes{{G}}": "1x30"},
        {**_stranger(), "gpuscope_gpu_unallocated_processes{{G}}": "0x30"}, "25m",
        own_labels=_BARE, expected=_OF_BOB),
    "SlurmQueueStuck": Case(
        {_WAITING: "5x90", _DEPENDS: "4x90", **_IDLE_NODE},
        {_WAITING: "5x90", **_IDLE_NODE, _RUNNING: "10+1x90"}, "70m", detail="Waiting jobs: 5.",
        also_fires={"slurm_queue_pending{{N}}": "9x90", "slurm_queue_pending_dependency{{N}}": "4x90",
                    "slurm_nodes_idle{{N}}": "3x90", "slurm_queue_running{{N}}": "10x90"}),
    "GpusIdleWhileJobsWait": Case(_queue("Resources"), _queue("Dependency"), "31m",
                                  detail="Idle GPUs: 3."),
    "SlurmDbdBacklog": Case({"gpuscope_slurm_dbd_agent_queue_size{{N}}": "2000x20"},
                            {"gpuscope_slurm_dbd_agent_queue_size{{N}}": "5x20",
                             "slurm_scheduler_dbd_queue_size{{N}}": "5x20"}, "11m",
                            detail="Waiting records: 2000.",
                            also_fires={"slurm_scheduler_dbd_queue_size{{N}}": "2000x20"}),
}  # fmt: skip

SERVICE_CASES: Final[dict[str, Case]] = {
    "StoreTrouble": _node("gpuscope_store_full", "1x20", "0x20", "2m"),
    "RuleTrouble": _node("prometheus_rule_evaluation_failures_total", "0+1x40", "3x40", "20m",
                         'rule_group="g"'),
    "NotifyFailing": _node("prometheus_notifications_errors_total", "0+1x60", "3x60", "40m",
                           'alertmanager="a"'),
    "GpuMetricsMissing": Case(
        {'gpuscope_agent_info{{N},node="node1"}': "_x40", 'up{{N},job="gpu"}': "1x40"},
        {'gpuscope_agent_info{{N},node="node1"}': "1x40", 'up{{N},job="gpu"}': "1x40"},
        "20m",
        own_labels=" ",
    ),
    "OwnerLabelsRenamed": Case(
        {'gpuscope_allocation_used{{N},job="gpu",exported_namespace="ml",exported_pod="train"}': "1x40"},
        {'gpuscope_allocation_used{{N},job="gpu",namespace="ml",pod="train"}': "1x40"},
        "15m",
        labels='job="gpu"',
    ),
    "Watchdog": Case({}, {}, "1m", own_labels=" "),
}  # fmt: skip


def _dcgm(metric: str, bad: str, good: str, at: str, detail: str = "") -> Case:
    return Case({f"{metric}{{{{D}}}}": bad}, {f"{metric}{{{{D}}}}": good}, at, detail=detail, own_labels="{D}")


def _smi(metric: str, bad: str, good: str, at: str, detail: str = "", labels: str = "") -> Case:
    more = f",{labels}" if labels else ""
    series = f"{metric}{{{{S}}{more}}}"
    return Case({series: bad}, {series: good}, at, detail=detail, own_labels="{S}" + more)


_FB = "DCGM_FI_DEV_FB_{}{{{{D}}}}"
DCGM_CASES: Final[dict[str, Case]] = {
    "HostDown": Case({'up{{N},job="gpu"}': "0x20", 'DCGM_FI_DEV_GPU_TEMP{{D},job="gpu"}': "40x20"},
                     {'up{{N},job="postgres"}': "0x20", 'DCGM_FI_DEV_GPU_TEMP{{D},job="gpu"}': "40x20"},
                     "6m", 'job="gpu"'),
    "GpuCountDropped": Case(
        {"DCGM_FI_DEV_GPU_TEMP{{D}}": "40x20",
         'DCGM_FI_DEV_GPU_TEMP{instance="node1:9400",gpu="1"}': "40x5 stale"},
        {"DCGM_FI_DEV_GPU_TEMP{{D}}": "40x20"}, "15m", detail="GPUs that answer: 1."),
    "XidHardware": _dcgm("DCGM_FI_DEV_XID_ERRORS", "0x20 79x30", "0x10 79x40", "29m", "XID 79."),
    "XidNvlink": _dcgm("DCGM_FI_DEV_XID_ERRORS", "74x30", "13x30", "5m", "XID 74."),
    "XidDriver": _dcgm("DCGM_FI_DEV_XID_ERRORS", "119x30", "79x30", "5m", "XID 119."),
    "XidContained": _dcgm("DCGM_FI_DEV_XID_ERRORS", "94x30", "13x30", "5m", "XID 94."),
    "EccUncorrected": _dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "2x20", "0x20", "1m", "Errors: 2."),
    "EccCorrectedRate": _dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "0+20x200", "0+1x200", "150m"),
    "RowRemapFailed": _dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1x20", "0x20", "1m"),
    "PagesRetiring": _dcgm("DCGM_FI_DEV_RETIRED_PENDING", "1x20", "0x20", "6m"),
    "HwThermal": _dcgm("DCGM_FI_DEV_THERMAL_VIOLATION", "0+12000000000x40", "0+3000000000x40", "15m"),
    "PowerCapped": _dcgm("DCGM_FI_DEV_POWER_VIOLATION", "0+59000000000x90", "0+30000000000x90", "70m"),
    "TempMargin": _dcgm("DCGM_FI_DEV_GPU_TEMP", "95x20", "60x20", "3m", "95 °C."),
    "MemoryHot": _dcgm("DCGM_FI_DEV_MEMORY_TEMP", "99x20", "60x20", "6m", "99 °C."),
    "PcieReplays": _dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0+20x30", "0+2x30", "20m"),
    "NvlinkErrors": _dcgm("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "0x5 4x20", "4x20", "10m"),
    "MemoryFull": Case({_FB.format("USED"): "99x40", _FB.format("FREE"): "1x40"},
                       {_FB.format("USED"): "50x40", _FB.format("FREE"): "50x40"}, "31m",
                       detail="99% is used.", own_labels="{D}"),
    "HeldIdle": Case({_FB.format("USED"): "20000x90", "DCGM_FI_DEV_GPU_UTIL{{D}}": "0x90"},
                     {_FB.format("USED"): "20000x90", "DCGM_FI_DEV_GPU_UTIL{{D}}": "50x90"}, "80m",
                     detail="20000 MiB are held.", own_labels="{D}"),
}  # fmt: skip

_COUNTERS = "nvidia_smi_clocks_event_reasons_counters_"
_SMI_XID = "nvidia_smi_xid_last_timestamp_seconds"
NVIDIA_SMI_CASES: Final[dict[str, Case]] = {
    "HostDown": Case({'up{{N},job="gpu"}': "0x20", 'nvidia_smi_gpu_info{{S},job="gpu"}': "1x20"},
                     {'up{{N},job="postgres"}': "0x20", 'nvidia_smi_gpu_info{{S},job="gpu"}': "1x20"},
                     "6m", 'job="gpu"'),
    "SourceDown": _node("nvidia_smi_command_exit_code", "9x20", "0x20", "6m",
     detail="nvidia-smi ended with 9."),
    "GpuCountDropped": Case(
        {'nvidia_smi_gpu_info{{N},uuid="u2"}': "1x20", 'nvidia_smi_gpu_info{{N},uuid="u3"}': "1x5 stale"},
        {'nvidia_smi_gpu_info{{N},uuid="u2"}': "1x20"}, "15m", detail="GPUs that answer: 1."),
    "XidHardware": _smi(_SMI_XID, "0x20", "-300x20", "5m", "XID 79.", 'xid="79"'),
    "XidNvlink": _smi(_SMI_XID, "0x20", "-300x20", "5m", "XID 74.", 'xid="74"'),
    "XidDriver": _smi(_SMI_XID, "0x20", "-300x20", "5m", "XID 119.", 'xid="119"'),
    "XidContained": _smi(_SMI_XID, "0x20", "-300x20", "5m", "XID 94.", 'xid="94"'),
    "EccUncorrected": _smi("nvidia_smi_ecc_errors_uncorrected_volatile_total", "2x20", "0x20", "1m",
     "Errors: 2."),
    "EccCorrectedRate": _smi("nvidia_smi_ecc_errors_corrected_volatile_total", "0+20x200", "0+1x200", "150m"),
    "RowRemapPending": _smi("nvidia_smi_remapped_rows_pending", "1x20", "0x20", "6m"),
    "RowRemapFailed": _smi("nvidia_smi_remapped_rows_failure", "1x20", "0x20", "1m"),
    "SpareRowsOut": _smi("nvidia_smi_remapped_rows_histogram_none", "1x20", "0x20", "1m"),
    "EccModeChange": Case(
        {"nvidia_smi_ecc_mode_current{{S}}": "1x20", "nvidia_smi_ecc_mode_pending{{S}}": "0x20"},
        {"nvidia_smi_ecc_mode_current{{S}}": "1x20", "nvidia_smi_ecc_mode_pending{{S}}": "1x20"}, "1m",
        own_labels="{S}"),
    "HwThermal": _smi(_COUNTERS + "hw_thermal_slowdown_seconds", "0+12x40", "0+3x40", "15m"),
    "SwThermal": _smi(_COUNTERS + "sw_thermal_slowdown_seconds", "0+40x60", "0+20x60", "40m"),
    "PowerBrake": _smi(_COUNTERS + "hw_power_brake_slowdown_seconds", "0+12x40", "0+3x40", "15m"),
    "PowerCapped": _smi(_COUNTERS + "sw_power_cap_seconds", "0+59x90", "0+30x90", "70m"),
    "TempMargin": _smi("nvidia_smi_temperature_gpu", "95x20", "60x20", "3m"),
    "MemoryHot": _smi("nvidia_smi_temperature_memory", "99x20", "60x20", "6m", "99 °C."),
    "PcieDegraded": Case(
        {"nvidia_smi_pcie_link_width_current{{S}}": "8x20", "nvidia_smi_pcie_link_width_max{{S}}": "16x20"},
        {"nvidia_smi_pcie_link_width_current{{S}}": "16x20", "nvidia_smi_pcie_link_width_max{{S}}": "16x20"},
        "11m", detail="Lanes: 8.", own_labels="{S}"),
    "PowerLimitLow": Case(
        {"nvidia_smi_enforced_power_limit_watts{{S}}": "300x20",
         "nvidia_smi_power_default_limit_watts{{S}}": "700x20"},
        {"nvidia_smi_enforced_power_limit_watts{{S}}": "700x20",
         "nvidia_smi_power_default_limit_watts{{S}}": "700x20"}, "16m", detail="300 W.", own_labels="{S}"),
    "PersistenceOff": _smi("nvidia_smi_persistence_mode", "0x70", "1x70", "61m"),
    "MemoryFull": Case(
        {"nvidia_smi_memory_used_bytes{{S}}": "99x40", "nvidia_smi_memory_total_bytes{{S}}": "100x40"},
        {"nvidia_smi_memory_used_bytes{{S}}": "50x40", "nvidia_smi_memory_total_bytes{{S}}": "100x40"}, "31m",
        detail="99% is used.", own_labels="{S}"),
}  # fmt: skip

CASES: Final[dict[str, dict[str, Case]]] = {
    "gpuscope-node": NODE_CASES,
    "gpuscope-gpu": GPU_CASES,
    "gpuscope-use": USE_CASES,
    "gpuscope-slurm": SLURM_CASES,
    "gpuscope-service": SERVICE_CASES,
    "dcgm-exporter": DCGM_CASES,
    "nvidia-gpu-exporter": NVIDIA_SMI_CASES,
}
