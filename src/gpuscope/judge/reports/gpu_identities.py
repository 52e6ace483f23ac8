"""What the history says a GPU or MIG instance is: node, index, slot, model, and which part of a board.

Read from the labels of info series, raw or rolled up. A value that no series has is "". An instance counts by
its compute slices; one whose profile is not known counts 0, as in the agents' counters. A pod's labels are read
from kube-state-metrics' `kube_pod_labels` too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.checks.check import Check, Share, Subject
from gpuscope.judge.checks.finding import GpuKey, SubjectKey
from gpuscope.judge.rules.shipped.rule_files import HOURLY_INFOS
from gpuscope.model.vendor import UNLABELLED, vendor_of

POD_LABEL_SERIES = ("gpuscope_pod_labels", HOURLY_INFOS["gpuscope_pod_labels"], "kube_pod_labels")
WHOLE_GPU = "whole GPU"
"""In place of a MIG profile."""
InfoLabels = Mapping[str, str]


def gpu_key(labels: Mapping[str, str]) -> GpuKey:
    return labels.get("instance", ""), labels.get("uuid", "")


class GpuIdentities:
    def __init__(self, infos: Iterable[InfoLabels] = ()) -> None:
        """Labels of info series; later ones replace earlier ones."""
        self._labels: dict[GpuKey, InfoLabels] = {gpu_key(labels): labels for labels in infos}
        self._of_uuid: dict[str, InfoLabels] = {}
        self._keys: dict[str, list[GpuKey]] = defaultdict(list)
        self._nodes: dict[str, str] = {}
        """By instance."""
        self._boards: dict[str, list[GpuKey]] = defaultdict(list)
        """By instance."""
        for key, labels in self._labels.items():
            self._of_uuid[key[1]] = labels
            self._keys[key[1]].append(key)
            if labels.get("node"):
                self._nodes[key[0]] = labels["node"]
            if not labels.get("parent_uuid"):
                self._boards[key[0]].append(key)
        self.parents = {
            uuid: labels["parent_uuid"] for uuid, labels in self._of_uuid.items() if labels.get("parent_uuid")
        }
        """UUIDs of GPUs, by UUID of their MIG instances."""

    def node(self, labels: Mapping[str, str]) -> str:
        """Of a series about a GPU or instance: a GPU may have moved."""
        instance, uuid = gpu_key(labels)
        known = self._labels.get((instance, self.board_uuid(uuid)), {})
        return known.get("node", "") or labels.get("node", "") or instance

    def node_name(self, key: GpuKey) -> str:
        return self._nodes.get(key[0], key[0])

    def instances(self, name: str) -> list[str]:
        """Of the node that has this name."""
        return [instance for instance, node in self._nodes.items() if node == name]

    def slot(self, labels: Mapping[str, str]) -> tuple[str, str] | None:
        """Node and slot of a GPU: its PCI address, else its index; None if neither is known."""
        slot = self._labels.get(gpu_key(labels), {}).get("pci_bus_id", "") or labels.get("gpu", "")
        return (self.node(labels), slot) if slot else None

    def index(self, key: GpuKey) -> str:
        return self._labels.get(key, {}).get("gpu", "")

    def place(self, key: GpuKey) -> tuple[str, int, str, str]:
        """Sort key: by node, then as the driver numbers them."""
        index = self.index(key)
        return self.node_name(key), len(index), index, key[1]

    def model(self, uuid: str) -> str:
        """Of an instance, the model of its board."""
        return self._of_uuid.get(self.board_uuid(uuid), {}).get("model", "")

    def profile(self, uuid: str) -> str:
        """Of a MIG instance; empty for a whole GPU."""
        return self._of_uuid[uuid].get("profile", "") if uuid in self.parents else ""

    def profile_name(self, uuid: str) -> str:
        return self.profile(uuid) if uuid in self.parents or is_instance(uuid) else WHOLE_GPU

    def board_uuid(self, uuid: str) -> str:
        """The GPU's own UUID, of a GPU or a MIG instance."""
        return self.parents.get(uuid, uuid)

    def board(self, key: GpuKey) -> GpuKey:
        return key[0], self.board_uuid(key[1])

    def is_board(self, key: GpuKey) -> bool:
        return key in self._labels and key[1] not in self.parents

    def boards(self, instance: str) -> list[GpuKey]:
        """One for each slot: of a card that was swapped, the new one."""
        keys = self._boards.get(instance, ())
        return list({(self.slot(self._labels[key]) or key)[1]: key for key in keys}.values())

    def other_reporters(self, key: GpuKey) -> list[GpuKey]:
        """The same GPU, as other instances have it."""
        return [other for other in self._keys.get(key[1], ()) if other != key]

    def of_subject(self, check: Check, subject: SubjectKey) -> list[GpuKey]:
        """The GPU or instance that is lost while the check holds, or all boards of the node."""
        if subject.uuid:
            return [subject.gpu]
        if check.subject is Subject.SLURM_NODE:
            boards = {key[1]: key for name in self.instances(subject.instance) for key in self.boards(name)}
            return list(boards.values())
        return self.boards(subject.instance)

    def weight(self, uuid: str) -> float:
        """How many GPUs it is."""
        if uuid not in self.parents:
            return 1.0
        vendor = self._of_uuid.get(self.parents[uuid], {}).get("vendor", UNLABELLED)
        return slice_share(self.profile(uuid) or "?", self.model(uuid), vendor)

    def total(self, check: Check, subject: SubjectKey) -> float:
        """How many GPUs one second of the subject costs."""
        if check.share is Share.COUNT:
            return 1.0  # its spans are of all GPUs
        return sum(self.weight(uuid) for _, uuid in self.of_subject(check, subject))


def slice_share(profile: str, model: str, vendor: str = UNLABELLED) -> float:
    """An instance's share of its GPU: 1 without a profile, 0 if the profile is not known."""
    if not profile:
        return 1.0
    known = vendor_of(vendor)
    return 0.0 if known is None else known.instance_share(profile, model)


def is_instance(uuid: str) -> bool:
    return uuid.startswith("MIG-")


def is_pci_address(slot: str) -> bool:
    return ":" in slot


async def read_gpu_identities(engine: QueryEngine, start_ms: int, end_ms: int) -> GpuIdentities:
    infos = [
        labels
        for raw in ("gpuscope_gpu_info", "gpuscope_mig_info")
        for labels in await engine.series([HOURLY_INFOS[raw], raw], start_ms, end_ms)
    ]
    return GpuIdentities(map(dict, infos))


async def read_pod_label(
    engine: QueryEngine, label: str, start_ms: int, end_ms: int
) -> dict[tuple[str, str], str]:
    """The value by namespace and pod. `label` is as in the series: `team` or `label_team`."""
    name = label if label.startswith("label_") else f"label_{label}"
    selectors = [f'{series}{{{name}!=""}}' for series in POD_LABEL_SERIES]
    series = map(dict, await engine.series(selectors, start_ms, end_ms))
    return {(labels.get("namespace", ""), labels.get("pod", "")): labels[name] for labels in series}
