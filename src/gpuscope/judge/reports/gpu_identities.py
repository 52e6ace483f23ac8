"""What the labels of a counter do not say: a GPU's model and node, an instance's profile, a pod's labels.

Read from the labels of info series, raw or rolled up; kube-state-metrics' `kube_pod_labels` is used too. A
value that no series has is "".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.rules.shipped.rule_files import HOURLY_INFOS

POD_LABEL_SERIES = ("gpuscope_pod_labels", HOURLY_INFOS["gpuscope_pod_labels"], "kube_pod_labels")
WHOLE_GPU = "whole GPU"
"""In place of a MIG profile."""


@dataclass(frozen=True, slots=True)
class GpuIdentities:
    models: Mapping[str, str] = field(default_factory=dict)
    """By UUID of GPUs and MIG instances."""
    nodes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By scraped instance and UUID of GPUs and MIG instances: a GPU may have moved."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """By UUID of MIG instances."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """UUIDs of GPUs, by UUID of their MIG instances."""
    addresses: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """PCI addresses, by scraped instance and UUID of GPUs."""

    def slot(self, labels: Mapping[str, str]) -> tuple[str, str] | None:
        """Node and slot of a GPU: its PCI address, else its index; None if neither is known."""
        address = self.addresses.get((labels.get("instance", ""), labels.get("uuid", "")), "")
        slot = address or labels.get("gpu", "")
        return (self.node(labels), slot) if slot else None

    def model(self, uuid: str) -> str:
        return self.models.get(uuid, "")

    def node(self, labels: Mapping[str, str]) -> str:
        instance = labels.get("instance", "")
        return self.nodes.get((instance, labels.get("uuid", "")), "") or labels.get("node", "") or instance

    def board(self, uuid: str) -> str:
        """The GPU's own UUID, of a GPU or a MIG instance."""
        return self.parents.get(uuid, uuid)

    def profile(self, uuid: str) -> str:
        return self.profiles.get(uuid, "" if is_instance(uuid) else WHOLE_GPU)


def is_instance(uuid: str) -> bool:
    return uuid.startswith("MIG-")


def is_pci_address(slot: str) -> bool:
    return ":" in slot


async def read_gpu_identities(engine: QueryEngine, start_ms: int, end_ms: int) -> GpuIdentities:
    async def infos(raw: str) -> list[dict[str, str]]:
        return [dict(labels) for labels in await engine.series([HOURLY_INFOS[raw], raw], start_ms, end_ms)]

    models, nodes, profiles, parents, addresses = {}, {}, {}, {}, {}
    for labels in await infos("gpuscope_gpu_info"):
        uuid, instance = labels.get("uuid", ""), labels.get("instance", "")
        models[uuid], nodes[instance, uuid] = labels.get("model", ""), labels.get("node", "")
        addresses[instance, uuid] = labels.get("pci_bus_id", "")
    for labels in await infos("gpuscope_mig_info"):
        uuid, parent, instance = (labels.get(name, "") for name in ("uuid", "parent_uuid", "instance"))
        profiles[uuid], parents[uuid] = labels.get("profile", ""), parent
        models[uuid] = models.get(parent, "")
        nodes[instance, uuid] = nodes.get((instance, parent), "")
    return GpuIdentities(models, nodes, profiles, parents, addresses)


async def read_pod_label(
    engine: QueryEngine, label: str, start_ms: int, end_ms: int
) -> dict[tuple[str, str], str]:
    """The value by namespace and pod. `label` is as in the series: `team` or `label_team`."""
    name = label if label.startswith("label_") else f"label_{label}"
    selectors = [f'{series}{{{name}!=""}}' for series in POD_LABEL_SERIES]
    found = {}
    for pairs in await engine.series(selectors, start_ms, end_ms):
        labels = dict(pairs)
        found[labels.get("namespace", ""), labels.get("pod", "")] = labels[name]
    return found
