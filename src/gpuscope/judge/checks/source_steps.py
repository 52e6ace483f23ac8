"""What to do when a source of numbers does not answer, by the value of its label `source`.

A source that is not here (one that somebody added) has the general step of its check: `gpuscope doctor`.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import advices

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


STEP_KEYS: Final[dict[str, str]] = {
    source: "source." + next(name for name, text in SOURCE_STEPS.items() if text == step)
    for source, step in SOURCE_STEPS.items()
}
"""The text key of a source's step: sources with the same step share one, so that it is translated once."""
