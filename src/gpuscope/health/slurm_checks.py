"""What can be wrong with a Slurm cluster: no answer, nodes down or drained, a queue that does not move."""

from __future__ import annotations

from typing import Final

from gpuscope.health.check import Check, Severity, Subject

DBD_QUEUE_SIZE: Final = 1000
"""Records that wait for slurmdbd; Slurm drops them at 10,000 or more."""


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


SLURM_CHECKS: Final = (
    _slurm("slurm_down", "SlurmDown", Severity.CRITICAL,
           'gpuscope_source_up{source=~"slurm.*"} == 0 '
           "or (count_over_time(slurm_nodes_idle[1d]) unless slurm_nodes_idle)",
           "Slurm does not answer: its numbers are missing.",
           "check slurmctld, munge and slurmdbd",
           for_seconds=300, inhibited_by=("node_down",)),
    _slurm("slurm_nodes_down", "SlurmNodesDown", Severity.WARNING,
           "slurm_nodes_down + slurm_nodes_fail > 0",
           "Slurm nodes are down or failed.", "run sinfo -R for the reasons",
           for_seconds=900, inhibited_by=("slurm_down", "node_down")),
    _slurm("slurm_drained", "SlurmDrained", Severity.INFO,
           "slurm_nodes_drain > 0",
           "Slurm nodes have been drained for a day.", "run sinfo -R; resume nodes that are repaired",
           for_seconds=86400, inhibited_by=("slurm_down",)),
    _slurm("slurm_queue_stuck", "SlurmQueueStuck", Severity.WARNING,
           "slurm_queue_pending - slurm_queue_pending_dependency > 0 and on (instance) slurm_nodes_idle > 0 "
           "and on (instance) delta(slurm_queue_running[30m]) <= 0",
           "Jobs wait although nodes are idle, and no more jobs run than half an hour ago.",
           "look at the reasons in squeue, then at sdiag",
           for_seconds=1800, inhibited_by=("slurm_down",)),
    _slurm("slurm_dbd_backlog", "SlurmDbdBacklog", Severity.WARNING,
           f"slurm_scheduler_dbd_queue_size > {DBD_QUEUE_SIZE}",
           "Accounting records wait for slurmdbd, and are lost when the queue is full.",
           "check slurmdbd and its database",
           for_seconds=600, inhibited_by=("slurm_down",)),
)  # fmt: skip
