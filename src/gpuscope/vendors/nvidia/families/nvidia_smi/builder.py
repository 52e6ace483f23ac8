"""Family `nvidia_smi`: byte-equal to the output of nvidia_gpu_exporter 1.14, including its quirks.

The values are nvidia-smi's own cells if it is the source, else readings printed like nvidia-smi prints them.
After a failed read no GPU series are exported, only the failure metrics. The exporter's metrics about itself
are left out: `go_*`, `process_*`, `promhttp_*`, `nvidia_gpu_exporter_build_info`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.agent.families import FamilySpec
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.readings import Snapshot
from gpuscope.vendors.nvidia.families.nvidia_smi.apps import add_apps
from gpuscope.vendors.nvidia.families.nvidia_smi.columns import (
    Cells,
    SmiColumns,
    add_columns,
    add_info,
    cells_of_devices,
)
from gpuscope.vendors.nvidia.families.nvidia_smi.extras import add_extras, add_xids
from gpuscope.vendors.nvidia.families.nvidia_smi.go_registry import GoRegistry, LabelSets
from gpuscope.vendors.nvidia.families.nvidia_smi.health_metrics import (
    add_health,
    backing_source,
    runs_the_command,
)
from gpuscope.vendors.nvidia.nvidia_values import of_nvidia


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The exporter's flags that change its output, with its names."""

    backend: str = ""  # --collect.backend: exec, nvml or demo; empty: the source of the devices
    compute_apps: bool = False  # --collect.compute-apps
    compute_apps_mig: bool = False  # --collect.compute-apps-mig
    pcie_throughput: bool = False  # --collect.pcie-throughput
    query_field_names: tuple[str, ...] = ()  # empty: AUTO, all fields
    query_field_names_exclude: tuple[str, ...] = ()


class NvidiaSmiBuilder:
    def __init__(self, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self._options = options
        self._columns = SmiColumns(options.query_field_names, options.query_field_names_exclude)
        self._label_sets = LabelSets()
        self._last_rows: Sequence[Cells] = ()
        self._last_families: Sequence[MetricFamily] = ()

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        snapshot = of_nvidia(snapshot)
        command = runs_the_command(snapshot, self._options.backend)
        status = backing_source(snapshot, command=command)
        rows = cells_of_devices(snapshot, command=command, only=self._options.query_field_names)
        rest = GoRegistry()
        add_health(rest, status, command=command)
        if not command:
            add_xids(rest, snapshot)
        if rows:
            add_info(rest, rows, snapshot)
            if self._options.compute_apps:
                add_apps(rest, snapshot, mig_labels=self._options.compute_apps_mig)
            if not command:
                add_extras(rest, snapshot, pcie_throughput=self._options.pcie_throughput)
        families = [*self._column_families(rows), *rest.families(self._label_sets)]
        return sorted(families, key=lambda family: family.name)

    def _column_families(self, rows: Sequence[Cells]) -> Sequence[MetricFamily]:
        """Builds the families again only after a new run of nvidia-smi: there are five snapshots per run."""
        if not _same_objects(rows, self._last_rows):
            registry = GoRegistry()
            add_columns(registry, rows, self._columns)
            self._last_rows, self._last_families = rows, registry.families(self._label_sets)
        return self._last_families


def _same_objects(some: Sequence[Cells], others: Sequence[Cells]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


FAMILY = FamilySpec(
    name="nvidia_smi",
    summary="nvidia_smi_*: what nvidia_gpu_exporter exports",
    build=lambda settings: NvidiaSmiBuilder(),
)
