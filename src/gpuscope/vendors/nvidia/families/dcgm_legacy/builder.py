"""Family `dcgm_legacy`: `dcgm_*` of the 2018 shell exporter, for node_exporter's textfile collector.

Labels are `gpu` and `uuid`; integers have no decimal point, doubles three decimals; absent values have no
sample. Fields added by id (`--fields +191,+51`) become `dcgm_<long name>` if they are numbers and labels of
`dcgm_info` if they are texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.agent.families import FamilySpec
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.number_text import fixed_decimals
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.readings import ABSENT, Device, Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import DcgmField, dcgm_fields
from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity
from gpuscope.vendors.nvidia.families.dcgm.field_values import FieldValues
from gpuscope.vendors.nvidia.families.dcgm.nvlink_rates import NvlinkRates, wants_links
from gpuscope.vendors.nvidia.families.dcgm_legacy.table import (
    EXTRA_HELP,
    LEGACY_METRICS,
    LegacyMetric,
    counts_up,
)
from gpuscope.vendors.nvidia.nvidia_values import of_nvidia

_BUILT_IN = frozenset(metric.id for metric in LEGACY_METRICS)


legacy_number = fixed_decimals(3)


class DcgmLegacyBuilder:
    def __init__(self, metrics: Sequence[LegacyMetric], texts: Sequence[DcgmField]) -> None:
        self._metrics = metrics
        self._texts = texts
        self._nvlink_rates = NvlinkRates()
        self._wants_links = wants_links(metric.id for metric in metrics)
        self._label_sets: dict[tuple[int, str], LabelSet] = {}

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        snapshot = of_nvidia(snapshot)
        rates = self._nvlink_rates.advance(snapshot, links=self._wants_links)
        values = FieldValues(snapshot, rates, no_xid=0)  # as DCGM 1.x did
        for metric in self._metrics:
            samples = [
                Sample(self._labels(device), value)
                for device in snapshot.devices
                if isinstance(value := values.of(metric.id, DcgmEntity(device)), int | float)
            ]
            if samples:
                yield MetricFamily(f"dcgm_{metric.name}", metric.type, metric.help, samples, legacy_number)
        if self._texts and snapshot.devices:
            yield self._info(snapshot, values)

    def _info(self, snapshot: Snapshot, values: FieldValues) -> MetricFamily:
        samples = []
        for device in snapshot.devices:
            texts = ((field.tag, values.of(field.id, DcgmEntity(device))) for field in self._texts)
            pairs = [(tag, str(text)) for tag, text in texts if text is not ABSENT]
            samples.append(Sample(LabelSet((*self._labels(device).pairs, *pairs)), 1))
        help_text = "Always 1; what the GPU says of itself in words."
        return MetricFamily("dcgm_info", "gauge", help_text, samples, legacy_number)

    def _labels(self, device: Device) -> LabelSet:
        key = (device.index, device.uuid)
        if key not in self._label_sets:
            self._label_sets[key] = LabelSet((("gpu", str(device.index)), ("uuid", str(device.uuid))))
        return self._label_sets[key]


def parse_fields(fields: Sequence[str]) -> tuple[tuple[LegacyMetric, ...], tuple[DcgmField, ...]]:
    """The metrics and texts that `--fields` adds, without duplicates and built-in metrics."""
    metrics: dict[int, LegacyMetric] = {}
    texts: dict[int, DcgmField] = {}
    for text in fields:
        field = _known_field(text)
        if field.kind == "s":
            texts[field.id] = field
        elif field.id not in _BUILT_IN:
            metrics[field.id] = _added_metric(field)
    return tuple(metrics.values()), tuple(texts.values())


def _known_field(text: str) -> DcgmField:
    digits = text.removeprefix("+")
    if not digits.isascii() or not digits.isdigit():
        raise UsageError(
            f"--fields: {text!r} is not a DCGM field id such as +191; `gpuscope fields` lists them"
        )
    field = dcgm_fields().get(int(digits)) if len(digits) < 6 else None
    if field is None:
        raise UsageError(f"--fields: DCGM has no field {digits}; `gpuscope fields` lists them")
    if field.kind == "b":
        raise UsageError(f"--fields: field {digits} ({field.tag}) is binary and has no number to export")
    return field


def _added_metric(field: DcgmField) -> LegacyMetric:
    help_text = EXTRA_HELP.get(field.id, f"DCGM field {field.id}, {field.tag.replace('_', ' ')}.")
    return LegacyMetric(field.id, field.tag, "counter" if counts_up(field.id) else "gauge", help_text)


def _build(settings: Settings) -> DcgmLegacyBuilder:
    added, texts = parse_fields(settings.fields)
    return DcgmLegacyBuilder((*LEGACY_METRICS, *added), texts)


FAMILY = FamilySpec(
    name="dcgm_legacy",
    summary="dcgm_* of the 2018 textfile exporter for DCGM",
    build=_build,
)
