"""What can be wrong with a Slurm cluster: no answer, nodes down or drained, a queue that does not move.

Each expression is over gpuscope's own metrics, which `up` and agents have; where those say nothing, over the
`slurm_*` metrics of prometheus-slurm-exporter or its stand-in.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpuscope.agent.owners.unallocated_use import NEW_SECONDS
from gpuscope.judge.checks.check import Check, Severity, Share, Subject
from gpuscope.judge.checks.use_checks import NO_PROCESS, NOT_SERVICES, PLACED_BY_SLURM, SAME_GPU, SLURM_NODES

DBD_QUEUE_SIZE: Final = 1000
"""Records that wait for slurmdbd; Slurm drops them at 10,000 or more."""

JOBS_WAIT: Final = (
    'sum by (instance) (gpuscope_slurm_partition_gpus_requested{gres="gpu"}) > 0 '
    "and on (instance) sum by (instance) (gpuscope_slurm_partition_jobs_pending"
    '{reason=~"None|Priority|Resources|ReqNodeNotAvail"}) > 0'
)
"""Jobs that wait for GPUs, and neither for another job nor for a limit of their user."""


_slurm: Final = partial(Check, subject=Subject.SERVICE)
# A cluster is the `instance` of the agent that reads it: two clusters may have nodes of the same name.
_NODES_DOWN: Final = (
    'max by (instance, node) (gpuscope_slurm_node_state{state="down"} == 1 '
    'or gpuscope_slurm_node_flag{flag="fail"} == 1)'
)
GPUS_OF_NODES_DOWN: Final = (
    'sum by (instance, node) (max without (job) (gpuscope_slurm_node_gpus{gres="gpu"})) '
    f"and on (instance, node) {_NODES_DOWN}"
)
FREE_WHILE_JOBS_WAIT: Final = (
    f"({NO_PROCESS} * {SAME_GPU} group_left (node) max by (instance, uuid, node) (gpuscope_gpu_info)) "
    # Of two clusters whose nodes have the same name, the one that leaves more of its GPUs idle.
    "* on (node) group_left (read_by) topk by (node) (1, label_replace("
    f'gpuscope_slurm_node_gpus{{gres="gpu",state="idle"}} > 0 and on (instance) ({JOBS_WAIT}), '
    '"read_by", "$1", "instance", "(.*)"))'
)
"""The GPUs that stay free, and by which agent the cluster is read."""
_QUEUE_STUCK: Final = (
    "sum by (instance) (gpuscope_slurm_partition_jobs_pending"
    '{reason!~"Dependency|BeginTime|JobHeld.*|.*Reserved for maintenance"}) > 0 '
    'and on (instance) (gpuscope_slurm_node_state{state="idle"} == 1 unless on (instance, node) '
    'gpuscope_slurm_node_flag{flag=~"drain|maint|not_responding|reserved|powered_down|powering_down"} == 1) '
    # With no job at all the series of running jobs is absent.
    'unless on (instance) delta(gpuscope_slurm_jobs{state="running"}[30m]) > 0'
)

_PROCESSES: Final = (
    f'(gpuscope_process_memory_bytes{{{NOT_SERVICES},pod="",container=""}} '
    f"and on (instance, uuid, pid) gpuscope_process_age_seconds > {NEW_SECONDS:g})"
)
_OUTSIDE: Final = f"{_PROCESSES} unless on (instance, uuid, slurm_job) gpuscope_allocation_used"
_KNOWN_BY_AGENT: Final = (
    f"(max by (instance, uuid) (gpuscope_gpu_unallocated_processes > 0) == {SAME_GPU} "
    f"count by (instance, uuid) ({_OUTSIDE})) * {SAME_GPU} group_right () ({_OUTSIDE})"
)
"""How many there are is the agent's count; whose they are is only said where the processes agree with it."""
_NOT_PLACED: Final = "gpuscope_slurm_job_info unless on (slurm_job) gpuscope_slurm_job_node_info"
_WITH_JOB: Final = '(sum by (instance) (gpuscope_process_memory_bytes{slurm_job!=""}))'
_KNOWN_BY_SLURM: Final = (
    f"({SLURM_NODES} * on (instance) group_right () {_PROCESSES} "
    # A process of a job that has the GPU, or whose nodes are not known yet.
    f"unless on (instance, uuid, slurm_job) {PLACED_BY_SLURM} "
    f'unless on (slurm_job) (gpuscope_process_memory_bytes{{slurm_job!=""}} '
    "unless on (slurm_job) gpuscope_slurm_job_node_info) "
    'unless on (slurm_job) label_replace(group by (het_job) (gpuscope_slurm_job_info{het_job!=""}), '
    '"slurm_job", "$1", "het_job", "(.+)") '
    # A process whose job the agent does not see may be of a job of its user, or of one that is not placed.
    f"unless on (instance, uuid, user) {PLACED_BY_SLURM} "
    f"unless on () ({_NOT_PLACED}) unless on (instance) ({SLURM_NODES} and on (instance) "
    f"{PLACED_BY_SLURM} unless on (instance) {_WITH_JOB}))"
)
STRANGERS: Final = f"{_KNOWN_BY_AGENT} or {_KNOWN_BY_SLURM}"
"""Processes without an allocation."""

SLURM_CHECKS: Final = (
    _slurm("slurm_down", "SlurmDown", Severity.CRITICAL,
           'max by (instance) (max_over_time(gpuscope_source_up{source=~"slurm.*"}[5m])) == 0 '
           'and on (instance) gpuscope_source_up{source=~"slurm.*"} offset 5m '
           "or max by (instance) (max_over_time(gpuscope_slurm_up[5m])) == 0 "
           "or (last_over_time(slurm_nodes_idle[1d:5m]) unless last_over_time(slurm_nodes_idle[5m]))",
           "Slurm does not answer: its numbers are missing.",
           "check slurmctld, munge and slurmdbd",
           lead_seconds=300, inhibited_by=("node_down",)),
    _slurm("slurm_nodes_down", "SlurmNodesDown", Severity.WARNING,
           f"{_NODES_DOWN} or on (instance) slurm_nodes_down + slurm_nodes_fail > 0",
           "Slurm calls a node down or failed: it gives it no jobs.", "run sinfo -R for the reason",
           for_seconds=900, inhibited_by=("slurm_down", "node_down"), subject=Subject.SLURM_NODE,
           share=Share.COUNT, lost=GPUS_OF_NODES_DOWN),
    _slurm("slurm_drained", "SlurmDrained", Severity.INFO,
           'max by (instance, node) (gpuscope_slurm_node_flag{flag="drain"} == 1) '
           "or on (instance) slurm_nodes_drain > 0",
           "A Slurm node has been drained for a day.", "run sinfo -R; resume it if it is repaired",
           for_seconds=86400, inhibited_by=("slurm_down", "slurm_nodes_down"), subject=Subject.SLURM_NODE),
    _slurm("slurm_queue_stuck", "SlurmQueueStuck", Severity.WARNING,
           f"({_QUEUE_STUCK}) or on (instance) (slurm_queue_pending - slurm_queue_pending_dependency > 0 "
           "and on (instance) slurm_nodes_idle > 0 and on (instance) delta(slurm_queue_running[30m]) <= 0)",
           "Jobs wait although nodes are idle, and no more jobs run than half an hour ago.",
           "look at the reasons in squeue, then at sdiag",
           for_seconds=1800, inhibited_by=("slurm_down",)),
    _slurm("queue_waits", "GpusIdleWhileJobsWait", Severity.WARNING,
           'sum by (instance) (gpuscope_slurm_gpus{gres="gpu",state="idle"}) > 0 '
           f"and on (instance) ({JOBS_WAIT})",
           "Jobs that ask for GPUs wait in Slurm's queue although GPUs are idle.",
           "squeue --start and scontrol show job JOB name what the jobs wait for: memory, CPUs or a partition",
           for_seconds=1800, inhibited_by=("slurm_down",), share=Share.WHOLE, lost=FREE_WHILE_JOBS_WAIT),
    _slurm("slurm_dbd_backlog", "SlurmDbdBacklog", Severity.WARNING,
           f"gpuscope_slurm_dbd_agent_queue_size > {DBD_QUEUE_SIZE} "
           f"or on (instance) slurm_scheduler_dbd_queue_size > {DBD_QUEUE_SIZE}",
           "Accounting records wait for slurmdbd, and are lost when the queue is full.",
           "check slurmdbd and its database",
           for_seconds=600, inhibited_by=("slurm_down",)),
    _slurm("used_unallocated", "UsedUnallocated", Severity.WARNING,
           STRANGERS,
           "A process uses a GPU of a Slurm node, and Slurm did not allocate the GPU to its job.",
           "ask its owner to submit a job; ConstrainDevices=yes and pam_slurm_adopt prevent it",
           for_seconds=300, subject=Subject.PROCESS),
)  # fmt: skip
