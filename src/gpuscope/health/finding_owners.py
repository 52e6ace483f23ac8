"""Who can act on a finding: the pod, else the job, else the container, else the user of the process.

The user inside a container is often the same for everybody (`jovyan`, `root`), so the pod's name comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.health.facts import FleetFacts, ProcessFacts
from gpuscope.health.finding import NO_OWNER, FindingOwner

OwnersBefore = Mapping[tuple[str, str], FindingOwner]
"""The owner of each GPU when it last had one, by instance and UUID."""


def process_owner(process: ProcessFacts) -> FindingOwner:
    labels = process.labels
    if labels.get("pod"):
        return FindingOwner("pod", labels.get("namespace", ""), labels["pod"])
    if labels.get("slurm_job"):
        return FindingOwner("job", "", labels["slurm_job"], labels.get("user", ""))
    if labels.get("container"):
        return FindingOwner("container", "", labels["container"])
    if labels.get("user"):
        return FindingOwner("user", "", labels["user"])
    if labels.get("pid"):
        return FindingOwner("process", "", f"PID {labels['pid']}")
    return NO_OWNER


def main_owner(processes: Sequence[ProcessFacts]) -> FindingOwner | None:
    """The owner of the process with the most memory; None without processes."""
    if not processes:
        return None
    return process_owner(max(processes, key=lambda one: one.plain.get("gpuscope_process_memory_bytes", 0.0)))


class OwnerMemory:
    """Remembers the owner of each GPU, so that a lost GPU's finding can name it."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, str], FindingOwner] = {}
        self._gpus: dict[str, list[tuple[str, str]]] = {}  # with an owner, by instance

    def remember(self, fleet: FleetFacts) -> None:
        """Of the GPUs of these nodes; those of other nodes stay."""
        for instance, node in fleet.nodes.items():
            before = {key: self.owners.pop(key) for key in self._gpus.pop(instance, ()) if key in self.owners}
            kept = {}
            for gpu in node.gpus:
                key = instance, gpu.labels["uuid"]
                owner = main_owner(gpu.processes)
                if owner is not None:
                    kept[key] = owner
                elif gpu.plain.get("gpuscope_gpu_up") == 0 and key in before:
                    kept[key] = before[key]
            if kept:
                self.owners |= kept
                self._gpus[instance] = list(kept)

    def forget(self, instance: str) -> None:
        """A node that has left."""
        for key in self._gpus.pop(instance, ()):
            del self.owners[key]
