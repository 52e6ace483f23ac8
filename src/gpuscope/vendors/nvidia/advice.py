"""What to do about NVIDIA's GPUs, in NVIDIA's own commands: next steps of findings and alerts."""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import Advice
from gpuscope.vendors.nvidia.exporter_rules import EXPORTER_RULES

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
