"""What a GPU or MIG instance of the history is: its node, index and model, and which part of a board it is.

From the info series of the windows. An instance counts by its compute slices; one whose profile is not known
counts 0, as in the agents' counters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from gpuscope.owners.gpu_time import COMPUTE_SLICES, DEFAULT_COMPUTE_SLICES
from gpuscope.reports.finding_windows import GpuKey, Window

_SLICES: Final = re.compile(r"(?:(\d+)c\.)?(\d+)g\.")


class GpuWeights:
    def __init__(self, windows: Iterable[Window]) -> None:
        self._labels: dict[GpuKey, dict[str, str]] = {}
        for window in windows:
            self._labels.update(window.gpus)
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
        return self._boards.get(instance, [])

    def other_reporters(self, key: GpuKey) -> list[GpuKey]:
        """The same GPU, as other instances have it."""
        return [one for one in self._keys.get(key[1], ()) if one != key]

    def boards_of_node(self, name: str) -> list[GpuKey]:
        instances = [instance for instance, node in self._nodes.items() if node == name]
        return [key for instance in instances for key in self.boards(instance)]

    def is_board(self, key: GpuKey) -> bool:
        labels = self._labels.get(key)
        return labels is not None and not labels.get("parent_uuid")

    def node(self, key: GpuKey) -> str:
        return self._nodes.get(key[0], key[0])

    def index(self, key: GpuKey) -> str:
        return self._labels.get(key, {}).get("gpu", "")

    def place(self, key: GpuKey) -> tuple[str, int, str, str]:
        """Sort key: by node, then as nvidia-smi numbers them."""
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
        return slice_share(labels.get("profile", "") or "?", self.model(key))


def slice_share(profile: str, model: str) -> float:
    """Of the compute slices of its GPU: 1 without a profile, 0 if the profile is not known."""
    if not profile:
        return 1.0
    match = _SLICES.match(profile)
    if match is None:
        return 0.0
    slices = next((n for pattern, n in COMPUTE_SLICES if pattern.search(model)), DEFAULT_COMPUTE_SLICES)
    return int(match[1] or match[2]) / slices
