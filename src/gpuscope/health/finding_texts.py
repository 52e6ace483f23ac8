"""The English sentences of findings, by text key; the page has the same keys in its other languages.

`{gpus}` is filled with the finding's GPUs, `{owner}` with its owner, the other names with its arguments. The
next step of a kind is in its check's row; the ones here depend on an XID's action or a throttle reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuscope.health.checks import CHECKS
from gpuscope.health.throttles import THROTTLES
from gpuscope.health.xids import XidAction

NOT_FINDINGS: Final = frozenset({"memory_full"})
"""Live checks that ask for no action; they are for alert rules that a site wants to switch on."""

FINDING_TEXTS: Final[dict[str, str]] = {
    "node_down": "No data from this node: {error}",
    "node_down.silent": "No data from this node",
    "node_down.never": "This target has never answered: {error}",
    "target_down": "Scrape target does not answer: {error}",
    "node_stale": "No fresh numbers from this node",
    "source_down": "Source {source} does not answer",
    "source_slow": "Source {source} needs more than {seconds} s for one read",
    "gpus_missing": "{count} GPU missing of {expected} on the bus",
    "host_memory_low": "Less than {percent} % of the node's memory is available",
    "gpu_lost": "GPU {gpus} does not answer",
    "gpu_lost.xid": "GPU {gpus} does not answer after XID {xid}",
    "recovery_action": "GPU {gpus}: the driver asks for recovery action {action}",
    "xid_hardware": "GPU {gpus}: XID {xid}, a hardware fault",
    "xid_nvlink": "GPU {gpus}: XID {xid}, an NVLink fault",
    "xid_driver": "GPU {gpus}: XID {xid}, a driver or firmware fault",
    "xid_application": "GPU {gpus}: XID {xid}, caused by a program; the GPU is healthy",
    "ecc_uncorrected": "GPU {gpus}: {count} uncorrectable memory errors",
    "ecc_sram_threshold": "GPU {gpus}: too many SRAM errors",
    "row_remap_pending": "GPU {gpus}: a memory row is replaced at the next reset",
    "row_remap_failed": "GPU {gpus}: a memory row could not be replaced",
    "spare_rows_out": "GPU {gpus}: a memory bank has no spare row left",
    "pages_retiring": "GPU {gpus}: memory pages wait to be retired",
    "ecc_mode_change": "GPU {gpus}: ECC mode changes at the next reboot",
    "throttled": "GPU {gpus} slowed down: {reason}",
    "hot": "GPU {gpus} is about to slow down because of heat",
    "memory_hot": "GPU {gpus}: memory is at its temperature limit",
    "power_limit_low": "GPU {gpus}: power limit {watts} W, the default is {default_watts} W",
    "fan_stopped": "GPU {gpus} is warm and a fan stands still",
    "pcie_degraded": "GPU {gpus}: PCIe uses {lanes} of {max_lanes} lanes",
    "fabric_not_ready": "GPU {gpus} has not joined the NVLink fabric",
    "persistence_off": "GPU {gpus}: persistence mode is off",
    "held_idle": "GPU {gpus} held by {owner}, not used",
    "allocated_unused": "GPU {gpus} allocated to {owner}, which has no process on it",
    "only_some_work": "{owner} works on GPU {working} only and leaves GPU {gpus} idle",
    "orphan_memory": "GPU {gpus}: memory is taken and no process owns it",
    "long_running": "{owner} has been on GPU {gpus} for more than a week",
}

XID_STEPS: Final[dict[XidAction, str]] = {
    XidAction.NONE: "nothing now; watch whether it returns",
    XidAction.RESTART_APPLICATION: "restart the program; its owner finds the cause in its log",
    XidAction.RESET_GPU: "drain the node, then reset the GPU; if it returns, replace the card",
    XidAction.REBOOT_NODE: "drain the node and power-cycle it; if it returns, reseat or replace the card",
    XidAction.CHECK_HARDWARE: "drain the node and check power cables, riser and slot",
    XidAction.UPDATE_SOFTWARE: "update driver and firmware",
    XidAction.CONTACT_SUPPORT: "collect nvidia-bug-report.sh and contact support",
    XidAction.FOLLOW_VERDICT: "do what the driver's recovery action says",
}

_DETAILED: Final = frozenset({"throttled", "xid_hardware", "xid_nvlink", "xid_driver", "xid_application"})
"""Kinds whose next step depends on the XID or the throttle reason."""

STEP_TEXTS: Final[dict[str, str]] = {
    **{
        kind: check.next_step
        for kind, check in CHECKS.items()
        if kind in FINDING_TEXTS and kind not in _DETAILED
    },
    **{f"xid.{action}": text for action, text in XID_STEPS.items()},
    **{f"throttle.{row.reason}": row.next_step for row in THROTTLES.values() if row.hinders},
    "node_down.never": "check the address in the configuration, the firewall, and that an agent runs there",
    "held_idle": "ask {owner} whether it is still needed",
    "only_some_work": "ask {owner} to check CUDA_VISIBLE_DEVICES and the launcher (torchrun, device_map)",
}


class _Blank(dict[str, object]):
    """A name without a value stays visible instead of raising an error."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def fill(text: str, values: Mapping[str, object]) -> str:
    return text.format_map(_Blank(values))


def join_indices(gpus: Iterable[str]) -> str:
    """`0, 1, 2, 5` as `0–2, 5`; indices of MIG instances stay as they are."""
    names = list(gpus)
    plain = [name for name in names if name.isascii() and name.isdigit() and len(name) < 9]
    runs: list[list[int]] = []
    for number in sorted(map(int, plain)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join([*parts, *(name for name in names if name not in plain)])
