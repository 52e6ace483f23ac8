"""The samples of the live picture by node, so that later steps work only on nodes that changed.

Input: samples from the collectors, the store or an engine. Output: a list per node. While nothing of a node
changes, its list is the same object in every update. Lists are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpuscope.judge.checks.facts import Sample
from gpuscope.serve.live.gone_history import SNAPSHOT_METRIC

FleetSamples = Mapping[str, Sequence[Sample]]
"""By the label `instance`; samples without it are under the empty name."""

SortLater = Callable[[], FleetSamples]
"""Makes them, in a worker thread: it takes long for a large fleet."""

SOURCE_UP: Final = "gpuscope_source_up"
GPU_INFO: Final = "gpuscope_gpu_info"
_PRESENCE: Final = frozenset({SNAPSHOT_METRIC, SOURCE_UP, GPU_INFO})


def by_node(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        instance = sample[1].get("instance", "")
        try:
            found[instance].append(sample)
        except KeyError:
            found[instance] = [sample]
    return found


class PresenceSamples:
    """Of each node the few samples that show whether it is there and whether its GPUs are read."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sequence[Sample], list[Sample]]] = {}

    def select(self, fleet: FleetSamples) -> list[Sample]:
        known = self._known
        self._known = {
            instance: before
            if (before := known.get(instance)) is not None and before[0] is samples
            else (samples, _presence(samples))
            for instance, samples in fleet.items()
        }
        return [sample for _, found in self._known.values() for sample in found]


def _presence(samples: Iterable[Sample]) -> list[Sample]:
    found: list[Sample] = []
    has_gpu = False
    # First all in one pass that costs next to nothing: hardly any sample of a large node is one of these.
    for sample in [one for one in samples if one[0] in _PRESENCE]:
        name = sample[0]
        if name == SNAPSHOT_METRIC or (name == SOURCE_UP and sample[2] == 0):
            found.append(sample)
        elif name == GPU_INFO and not has_gpu:  # one is enough
            has_gpu = True
            found.append(sample)
    return found
