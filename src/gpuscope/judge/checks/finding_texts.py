"""The English sentences of findings, by text key; the page has the same keys in its other languages.

`{gpus}` is filled with the finding's GPUs, `{gpu_list}` with the same as a vendor's command takes it, `{owner}`
with its owner, the other names with its arguments. The next step of a kind is in its check's row or in the
vendor's advice; the ones here depend on an error's action or a throttle reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuscope.judge.checks.check import Check
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding import NO_OWNER, FindingOwner, by_number
from gpuscope.model.vendor import (
    UNLABELLED,
    ErrorAction,
    advices,
    catalogues,
    next_step,
    throttle_reasons,
    vendors,
)

_RUNTIME: Final = "check Docker, Podman, containerd or CRI-O, and that the agent may open its socket"

SOURCE_STEPS: Final[dict[str, str]] = {
    **{source: step for advice in advices().values() for source, step in advice.source_steps.items()},
    "kernel-log": "let the agent read /dev/kmsg: as root or with CAP_SYSLOG; mount it into a container",
    "host": "check that the agent can read the host's /proc and /sys; mount them into a container",
    "slurm": "check slurmctld and munge: scontrol ping; squeue must work for the agent's user",
    "slurm-pids": "check slurmd on the node: systemctl status slurmd; scontrol listpids must work",
    "job-files": "check the folder that Slurm's prolog writes: it must exist and be readable for the agent",
    "kubelet": "check the kubelet and its socket /var/lib/kubelet/pod-resources/kubelet.sock",
    "pods": "check the address of the kubelet or the API server, and the rights of the agent's service account",
    "containers": _RUNTIME,
    "cri": _RUNTIME,
    "process-owners": "check that the agent can read /proc of all users (hidepid; hostPID in a pod)",
}
"""What to do when a source does not answer. One that somebody added has the step of its check: `doctor`."""


STEP_KEYS: Final[dict[str, str]] = {
    source: "source." + next(name for name, text in SOURCE_STEPS.items() if text == step)
    for source, step in SOURCE_STEPS.items()
}
"""The text key of a source's step: sources with the same step share one, so that it is translated once."""


NOT_FINDINGS: Final = frozenset({"memory_full", "power_capped"})
"""Checks that need no action; a site can enable their alert rules."""

FINDING_TEXTS: Final[dict[str, str]] = {
    "node_down": "No data from this node: {error}",
    "node_down.silent": "No data from this node",
    "node_down.never": "This target has never answered: {error}",
    "target_down": "Scrape target does not answer: {error}",
    "node_stale": "No fresh numbers from this node",
    "source_down": "Source {source} does not answer",
    "source_slow": "Source {source} needs more than {seconds} s for one read",
    "gpus_missing": "GPUs missing: {count} of {expected} on the bus",
    "host_memory_low": "Less than {percent} % of the node's memory is available",
    "gpu_count_dropped": "Fewer GPUs answer than some hours ago",
    "disk_filling": "{mountpoint} is nearly full, or will be within a day",
    "clock_skew": "The node's clock is off by {seconds} s",
    "power_brake_node": "The power supply tells several GPUs to slow down",
    "slurm_down": "Slurm does not answer: its numbers are missing",
    "slurm_nodes_down": "Slurm calls this node down or failed: it gets no jobs",
    "slurm_drained": "Slurm has drained this node: it gets no new jobs",
    "slurm_queue_stuck": "Jobs wait although nodes are idle: {count}",
    "queue_waits": "Jobs wait in Slurm's queue although GPUs are idle: {count}",
    "slurm_dbd_backlog": "Accounting records that wait for slurmdbd: {count}",
    "store_trouble": "History is not stored, or part of it is damaged",
    "rule_trouble": "Rules fail or are evaluated late: alerts may be missing",
    "notify_failing": "Alerts do not reach their receivers",
    "gpu_metrics_missing": "No GPU metrics arrive",
    "owner_labels_renamed": "The pods of GPUs are stored as exported_pod",
    "gpu_lost": "GPU {gpus} does not answer",
    "recovery_action": "GPU {gpus}: the driver asks for recovery action {action}",
    "ecc_uncorrected": "GPU {gpus}: uncorrectable memory errors: {count}",
    "ecc_sram_threshold": "GPU {gpus}: too many SRAM errors",
    "row_remap_pending": "GPU {gpus}: a memory row is replaced at the next reset",
    "row_remap_failed": "GPU {gpus}: a memory row could not be replaced",
    "spare_rows_out": "GPU {gpus}: a memory bank has no spare row left",
    "pages_retiring": "GPU {gpus}: memory pages wait to be retired",
    "ecc_corrected_rate": "GPU {gpus}: many corrected memory errors",
    "failed_jobs": "{count} programs of several users failed on GPU {gpus} within a day",
    "hw_thermal": "GPU {gpus} is too hot and slows down",
    "sw_thermal": "GPU {gpus} keeps its temperature by lower clocks",
    "power_brake": "GPU {gpus}: the power supply tells it to slow down",
    "clock_stuck": "GPU {gpus} works at less than half of its clock, and gives no reason",
    "slow_sibling": "GPU {gpus} is slower than the others of its node that are as busy",
    "pcie_generation": "GPU {gpus}: PCIe runs at a lower generation than card and slot have, under load",
    "pcie_replays": "GPU {gpus}: PCIe packets are retransmitted",
    "nvlink_down": "GPU {gpus}: NVLink {link} is down",
    "nvlink_errors": "GPU {gpus}: NVLink {link} has errors",
    "rail_down": "GPU {gpus}: its network port {device} is down",
    "rail_slow": "GPU {gpus}: its network port {device} is slower than it should be",
    "link_flaps": "GPU {gpus}: the link of {device} went down {count} times within an hour",
    "link_errors": "GPU {gpus}: the link of {device} has {count} errors an hour",
    "job_hangs": "{owner} hangs: all wait for rank {rank} on GPU {gpus}, which has launched less than they",
    "job_hangs.silent": "{owner} hangs: all wait for rank {rank} on GPU {gpus}, whose process does not answer",
    "job_hangs.elsewhere": "{owner} hangs: all wait for rank {rank} on {host}",
    "memory_leak": "{owner} will need more memory than GPU {gpus} has within two hours",
    "ecc_mode_change": "GPU {gpus}: ECC mode changes at the next reboot",
    "throttled": "GPU {gpus} slowed down: {reason}",
    "hot": "GPU {gpus} is about to slow down because of heat",
    "memory_hot": "GPU {gpus}: memory is at its temperature limit",
    "power_limit_low": "GPU {gpus}: power limit {watts} W, the default is {default_watts} W",
    "fan_stopped": "GPU {gpus} is warm and a fan has stopped",
    "pcie_degraded": "GPU {gpus}: PCIe uses {lanes} of {max_lanes} lanes",
    "fabric_not_ready": "GPU {gpus} has not joined the NVLink fabric",
    "persistence_off": "GPU {gpus}: persistence mode is off",
    "hung": "GPU {gpus} hangs: full utilisation, little power, no traffic",
    "waits_for_rank": "GPU {gpus} of {owner} waits for its slower rank on {slow}",
    "waits_for_disk": "GPU {gpus} waits: {owner} is blocked by file I/O {percent} % of the time",
    "waits_for_network": "GPU {gpus} waits: {owner} waits for the network {percent} % of the time",
    "waits_for_data": "GPU {gpus} of {owner} waits: one thread uses a whole core, the GPU is busy {busy} %",
    "unused": "GPU {gpus} has been used by nobody for a day",
    "held_idle": "GPU {gpus} held by {owner}, not used",
    "allocated_unused": "GPU {gpus} allocated to {owner}, which has no process on it",
    "allocated_unused.some": "{owner} uses {used} of its allocated GPUs: no process on GPU {gpus}",
    "used_unallocated": "{owner} uses GPU {gpus} without an allocation by Slurm",
    "only_some_work": "{owner} works on GPU {working} only and leaves GPU {gpus} idle",
    "orphan_memory": "GPU {gpus}: memory is taken and no process has it",
    "long_running": "{owner} has been on GPU {gpus} for more than a week",
    "past.node_down": "No data from this node",
    "past.source_down": "A source of numbers did not answer",
    "past.source_slow": "Reading the driver took seconds",
    "past.gpus_missing": "GPUs of this node were missing",
    "past.host_memory_low": "The node's memory was nearly used up",
    "past.recovery_action": "GPU {gpus}: the driver asked for a recovery",
    "past.ecc_uncorrected": "GPU {gpus}: uncorrectable memory errors",
    "past.power_limit_low": "GPU {gpus}: the power limit was below the default",
    "past.pcie_degraded": "GPU {gpus}: PCIe used fewer lanes than card and slot have",
    "past.target_down": "A scrape target did not answer",
    "past.disk_filling": "A file system of this node was nearly full",
    "past.clock_skew": "The node's clock was off",
    "past.slurm_queue_stuck": "Jobs waited although nodes were idle",
    "past.slurm_dbd_backlog": "Accounting records waited for slurmdbd",
    "past.slurm_nodes_down": "Slurm called this node down or failed: it got no jobs",
    "past.nvlink_down": "GPU {gpus}: an NVLink was down",
    "past.nvlink_errors": "GPU {gpus}: an NVLink had errors",
    "past.rail_down": "GPU {gpus}: its network port was down",
    "past.rail_slow": "GPU {gpus}: its network port was slower than it should be",
    "past.link_flaps": "GPU {gpus}: the link of its network port went down again and again",
    "past.link_errors": "GPU {gpus}: the link of its network port had errors",
    "past.job_hangs": "{owner} hung: all waited for one rank",
    "past.gpu_lost": "GPU {gpus} did not answer",
    "past.hung": "{count} of the GPUs of {owner} hung: full utilisation, little power, no traffic",
    "past.orphan_memory": "GPU {gpus}: memory was taken and no process owned it",
    "past.allocated_unused": "{owner} had no process on {count} of the GPUs allocated to it",
    "past.only_some_work": "{owner} left {count} of its GPUs idle while others worked",
    "past.waits_for_rank": "{count} of the GPUs of {owner} waited for a slower rank",
    "past.waits_for_disk": "{count} of the GPUs of {owner} waited for file I/O",
    "past.waits_for_network": "{count} of the GPUs of {owner} waited for data from the network",
    "past.waits_for_data": "{count} of the GPUs of {owner} waited for one busy thread",
    "past.held_idle": "{owner} held and did not use {count} of the GPUs",
    "past.queue_waits": "Jobs waited in Slurm's queue although GPUs were idle",
    "past.unused": "Nobody used {count} of the GPUs",
    "past.throttled": "GPU {gpus} was slowed down",
    "past.slow_sibling": "GPU {gpus} was slower than the others of its node under the same load",
    "past.failed_jobs": "Programs of several users failed on GPU {gpus}",
    **{
        f"gpu_lost.{errors.key}": f"GPU {{gpus}} does not answer after {errors.word} {{{errors.key}}}"
        for errors in catalogues()
    },
    **{row.kind: row.why for errors in catalogues() for row in errors.checks},
    **{f"past.{row.kind}": row.past for errors in catalogues() for row in errors.checks},
}
"""Keys that begin with `past.` are for findings over a time range."""

ACTION_STEPS: Final[dict[ErrorAction, str]] = {
    ErrorAction.NONE: "nothing now; watch whether it returns",
    ErrorAction.RESTART_APPLICATION: "restart the program; its owner finds the cause in its log",
    ErrorAction.RESET_GPU: "drain the node, then reset the GPU; if it returns, replace the card",
    ErrorAction.REBOOT_NODE: "drain the node and power-cycle it; if it returns, reseat or replace the card",
    ErrorAction.CHECK_HARDWARE: "drain the node and check power cables, riser and slot",
    ErrorAction.UPDATE_SOFTWARE: "update driver and firmware",
    ErrorAction.CONTACT_SUPPORT: "contact support",
    ErrorAction.FOLLOW_VERDICT: "do what the driver's recovery action says",
}

STEP_TEXTS: Final[dict[str, str]] = {
    **{
        kind: next_step(kind, check.next_step, UNLABELLED)
        for kind, check in CHECKS.items()
        if not FINDING_TEXTS.keys().isdisjoint((kind, f"past.{kind}"))
    },
    **{
        f"{vendor.errors.key}.{action}": next_step(action, text, vendor.name)
        for vendor in vendors().values()
        if vendor.errors is not None
        for action, text in ACTION_STEPS.items()
    },
    **{f"throttle.{row.reason}": row.next_step for row in throttle_reasons().values() if row.hinders},
    **{STEP_KEYS[source]: step for source, step in SOURCE_STEPS.items()},
    "unknown_owner": next_step(
        "unknown_owner", "find out whose it is: ps -o user,args -p PID names its user", UNLABELLED
    ),
    "node_down.never": "check the address in the configuration, the firewall, and that an agent runs there",
    "held_idle": "ask {owner} to free what is no longer needed",
    "allocated_unused": "ask {owner} to request fewer GPUs",
    "long_running": "ask {owner} whether it is meant to be",
    "used_unallocated": "ask {owner} to submit a job; ConstrainDevices=yes and pam_slurm_adopt prevent it",
    "only_some_work": "ask {owner} to check CUDA_VISIBLE_DEVICES and the launcher (torchrun, device_map)",
}


def vendor_step(key: str, check: Check, vendor: str) -> tuple[str, str]:
    """The text of a step on the GPUs of a vendor, and its key; without a key where it has no translation."""
    text = STEP_TEXTS.get(key, check.next_step)
    if vendor == UNLABELLED or key != check.kind:
        return text, key
    own = next_step(check.kind, check.next_step, vendor)
    return own, key if own == text else ""


UNKNOWN_OWNER: Final = "an owner who is not known"


def owner_text(owner: FindingOwner) -> str:
    return owner.label or UNKNOWN_OWNER


class _Blank(dict[str, object]):
    """A name without a value stays visible instead of raising an error."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def fill(text: str, values: Mapping[str, object]) -> str:
    return text.format_map(_Blank(values))


def step_key(key: str, owner: FindingOwner) -> str:
    """The step's own key, or that of finding the owner where the step would be to ask him."""
    return "unknown_owner" if owner == NO_OWNER and "{owner}" in STEP_TEXTS.get(key, "") else key


def place_values(gpus: Iterable[str], owner: str) -> dict[str, object]:
    """The values of the names that every text may have."""
    names = list(dict.fromkeys(gpus))
    whole = dict.fromkeys(name.partition("_")[0] for name in names)  # of an instance: its GPU
    return {"gpus": join_indices(names), "gpu_list": ",".join(sorted(whole, key=by_number)), "owner": owner}


def join_indices(gpus: Iterable[str]) -> str:
    """`0, 1, 2, 5` as `0–2, 5`; indices of instances stay as they are."""
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
