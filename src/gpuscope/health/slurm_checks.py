"""What can be wrong with a Slurm cluster: no answer, nodes down or drained, a queue that does not move.

Each expression is over gpuscope's own metrics, which `up` and agents have; where those say nothing, over the
`slurm_*` metrics of prometheus-slurm-exporter or its stand-in.
"""

from __future__ import annotations

from typing import Final

from gpuscope.health.check import Check, Severity, Subject

DBD_QUEUE_SIZE: Final = 1000
"""Records that wait for slurmdbd; Slurm drops them at 10,000 or more."""

JOBS_WAIT: Final = (
    'sum by (instance) (gpuscope_slurm_partition_gpus_requested{gres="gpu"}) > 0 '
    "and on (instance) sum by (instance) (gpuscope_slurm_partition_jobs_pending"
    '{reason=~"None|Priority|Resources|ReqNodeNotAvail"}) > 0'
)
"""Jobs that wait for GPUs, and neither for another job nor for a limit of their user."""


def _slurm(
    kind: str,
    alert: str,
    severity: Severity,
    promql: str,
    meaning: str,
    next_step: str,
    *,
    for_seconds: float,
    inhibited_by: tuple[str, ...] = (),
) -> Check:
    return Check(
        kind=kind,
        alert=alert,
        subject=Subject.SERVICE,
        severity=severity,
        promql=promql,
        one_form_because="Slurm's numbers are not part of the live picture",
        for_seconds=for_seconds,
        inhibited_by=inhibited_by,
        meaning=meaning,
        next_step=next_step,
    )


_QUEUE_STUCK: Final = (
    "sum by (instance) (gpuscope_slurm_partition_jobs_pending"
    '{reason!~"Dependency|BeginTime|JobHeld.*|.*Reserved for maintenance"}) > 0 '
    'and on (instance) (gpuscope_slurm_node_state{state="idle"} == 1 unless on (instance, node) '
    'gpuscope_slurm_node_flag{flag=~"drain|maint|not_responding|reserved|powered_down|powering_down"} == 1) '
    # With no job at all the series of running jobs is absent.
    'unless on (instance) delta(gpuscope_slurm_jobs{state="running"}[30m]) > 0'
)

SLURM_CHECKS: Final = (
    _slurm("slurm_down", "SlurmDown", Severity.CRITICAL,
           'max by (instance) (gpuscope_source_up{source=~"slurm.*"}) == 0 '
           "or max by (instance) (gpuscope_slurm_up) == 0 "
           "or (count_over_time(slurm_nodes_idle[1d]) unless slurm_nodes_idle)",
           "Slurm does not answer: its numbers are missing.",
           "check slurmctld, munge and slurmdbd",
           for_seconds=300, inhibited_by=("node_down",)),
    _slurm("slurm_nodes_down", "SlurmNodesDown", Severity.WARNING,
           'count by (instance) (max by (instance, node) (gpuscope_slurm_node_state{state="down"} == 1 '
           'or gpuscope_slurm_node_flag{flag="fail"} == 1)) > 0 '
           "or on () slurm_nodes_down + slurm_nodes_fail > 0",
           "Slurm nodes are down or failed.", "run sinfo -R for the reasons",
           for_seconds=900, inhibited_by=("slurm_down", "node_down")),
    _slurm("slurm_drained", "SlurmDrained", Severity.INFO,
           'count by (instance) (gpuscope_slurm_node_flag{flag="drain"} == 1) > 0 '
           "or on () slurm_nodes_drain > 0",
           "Slurm nodes have been drained for a day.", "run sinfo -R; resume nodes that are repaired",
           for_seconds=86400, inhibited_by=("slurm_down",)),
    _slurm("slurm_queue_stuck", "SlurmQueueStuck", Severity.WARNING,
           f"({_QUEUE_STUCK}) or on () (slurm_queue_pending - slurm_queue_pending_dependency > 0 "
           "and on (instance) slurm_nodes_idle > 0 and on (instance) delta(slurm_queue_running[30m]) <= 0)",
           "Jobs wait although nodes are idle, and no more jobs run than half an hour ago.",
           "look at the reasons in squeue, then at sdiag",
           for_seconds=1800, inhibited_by=("slurm_down",)),
    _slurm("queue_waits", "GpusIdleWhileJobsWait", Severity.WARNING,
           'sum by (instance) (gpuscope_slurm_gpus{gres="gpu",state="idle"}) > 0 '
           f"and on (instance) ({JOBS_WAIT})",
           "Jobs that ask for GPUs wait in Slurm's queue although GPUs are idle.",
           "squeue --start and scontrol show job JOB name what the jobs wait for: memory, CPUs or a partition",
           for_seconds=1800, inhibited_by=("slurm_down",)),
    _slurm("slurm_dbd_backlog", "SlurmDbdBacklog", Severity.WARNING,
           f"gpuscope_slurm_dbd_agent_queue_size > {DBD_QUEUE_SIZE} "
           f"or on () slurm_scheduler_dbd_queue_size > {DBD_QUEUE_SIZE}",
           "Accounting records wait for slurmdbd, and are lost when the queue is full.",
           "check slurmdbd and its database",
           for_seconds=600, inhibited_by=("slurm_down",)),
)  # fmt: skip
