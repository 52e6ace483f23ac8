"""What a GPU or MIG instance of the history is: its node, index and model, and which part of a board it is.

From the labels of info series. An instance counts by its compute slices; one whose profile is not known
counts 0, as in the agents' counters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuscope.judge.checks.check import Check, Share, Subject
from gpuscope.judge.checks.condition import SubjectKey
from gpuscope.model.vendor import UNLABELLED, vendor_of

GpuKey = tuple[str, str]
"""Instance and UUID; the UUID is empty for a node."""


class GpuWeights:
    def __init__(self, gpus: Iterable[Mapping[GpuKey, dict[str, str]]]) -> None:
        """Labels of info series; later ones replace earlier ones."""
        self._labels: dict[GpuKey, dict[str, str]] = {}
        for labels_by_key in gpus:
            self._labels.update(labels_by_key)
        self._nodes: dict[str, str] = {}
        self._boards: dict[str, list[GpuKey]] = defaultdict(list)
        self._keys: dict[str, list[GpuKey]] = defaultdict(list)
        for key, labels in self._labels.items():
            self._keys[key[1]].append(key)
            if labels.get("node"):
                self._nodes[key[0]] = labels["node"]
            if not labels.get("parent_uuid"):
                self._boards[key[0]].append(key)

    def boards(self, instance: str) -> list[GpuKey]:
        """One for each slot: of a card that was swapped, the new one."""
        return list({self._slot(key): key for key in self._boards.get(instance, ())}.values())

    def _slot(self, key: GpuKey) -> str:
        labels = self._labels[key]
        return labels.get("pci_bus_id", "") or labels.get("gpu", "") or key[1]

    def other_reporters(self, key: GpuKey) -> list[GpuKey]:
        """The same GPU, as other instances have it."""
        return [one for one in self._keys.get(key[1], ()) if one != key]

    def instances(self, name: str) -> list[str]:
        """Of the node that has this name."""
        return [instance for instance, node in self._nodes.items() if node == name]

    def of_subject(self, check: Check, subject: SubjectKey) -> list[GpuKey]:
        """The GPU or instance that is lost while the check holds, or all boards of the node."""
        if subject.uuid:
            return [(subject.instance, subject.uuid)]
        if check.subject is Subject.SLURM_NODE:
            boards = {key[1]: key for name in self.instances(subject.instance) for key in self.boards(name)}
            return list(boards.values())
        return self.boards(subject.instance)

    def total(self, check: Check, subject: SubjectKey) -> float:
        """How many GPUs one second of the subject costs."""
        if check.share is Share.COUNT:
            return 1.0  # its spans are of all GPUs
        return sum(self.weight(key) for key in self.of_subject(check, subject))

    def board(self, key: GpuKey) -> GpuKey:
        """Of an instance, the GPU that it is a part of."""
        parent = self._labels.get(key, {}).get("parent_uuid", "")
        return (key[0], parent) if parent else key

    def is_board(self, key: GpuKey) -> bool:
        labels = self._labels.get(key)
        return labels is not None and not labels.get("parent_uuid")

    def node(self, key: GpuKey) -> str:
        return self._nodes.get(key[0], key[0])

    def index(self, key: GpuKey) -> str:
        return self._labels.get(key, {}).get("gpu", "")

    def place(self, key: GpuKey) -> tuple[str, int, str, str]:
        """Sort key: by node, then as the driver numbers them."""
        index = self.index(key)
        return self.node(key), len(index), index, key[1]

    def model(self, key: GpuKey) -> str:
        """Of an instance, the model of its board."""
        labels = self._labels.get(key, {})
        parent = labels.get("parent_uuid", "")
        return self._labels.get((key[0], parent), {}).get("model", "") if parent else labels.get("model", "")

    def weight(self, key: GpuKey) -> float:
        labels = self._labels.get(key, {})
        if not labels.get("parent_uuid"):
            return 1.0
        board = self._labels.get((key[0], labels["parent_uuid"]), {})
        vendor = board.get("vendor", UNLABELLED)
        return slice_share(labels.get("profile", "") or "?", self.model(key), vendor)


def slice_share(profile: str, model: str, vendor: str = UNLABELLED) -> float:
    """An instance's share of its GPU: 1 without a profile, 0 if the profile is not known."""
    if not profile:
        return 1.0
    known = vendor_of(vendor)
    return 0.0 if known is None else known.instance_share(profile, model)
