"""The labels of a DCGM series in dcgm-exporter's order: identity, sorted label rows, sorted attributes.

Label sets are kept between snapshots, so that their text is built once.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope.model.exposition.sample import LabelSet
from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity, number_of
from gpuscope.vendors.nvidia.nvidia_values import gpu_instance_of

Pairs = tuple[tuple[str, str], ...]

MAX_KEPT = 20_000


class LabelMaker:
    def __init__(self, options: DcgmOptions) -> None:
        self._options = options
        self._uuid_label = "uuid" if options.use_old_namespace else "UUID"
        self._kept: dict[Pairs, LabelSet] = {}

    def identity(self, entity: DcgmEntity, hostname: str) -> Pairs:
        """The first labels of every series of a GPU or instance; an unknown label is empty, as in Go."""
        device, instance = entity.device, entity.instance
        gpu = str(number_of(device, device.index))
        model = "" if device.model is ABSENT else device.model
        if self._options.replace_blanks_in_model_name:
            model = "-".join(model.split())
        pairs = [
            ("gpu", gpu),
            (self._uuid_label, str(device.uuid)),
            ("pci_bus_id", "" if device.pci_bus_id is ABSENT else device.pci_bus_id),
            ("device", f"nvidia{gpu}"),
            ("modelName", model),
        ]
        if instance is not None and instance.profile is not ABSENT:
            pairs += [("GPU_I_PROFILE", instance.profile), ("GPU_I_ID", str(gpu_instance_of(instance)))]
        if hostname:
            pairs.append((self._options.hostname_label, hostname))
        return tuple(pairs)

    def label_set(self, identity: Pairs, labels: Mapping[str, str], attributes: Mapping[str, str]) -> LabelSet:
        pairs = (*identity, *sorted(labels.items()), *sorted(attributes.items()))
        known = self._kept.get(pairs)
        if known is None:
            if len(self._kept) > MAX_KEPT:  # new job names keep appearing
                self._kept.clear()
            known = self._kept[pairs] = LabelSet(pairs)
        return known
