"""Family `dcgm_legacy`: `dcgm_*` of the 2018 shell exporter, for node_exporter's textfile collector.

Labels are `gpu` and `uuid`; integers have no decimal point, doubles three decimals; absent values have no
sample. Fields added by id (`--fields +191,+51`) become `dcgm_<long name>` if they are numbers and labels of
`dcgm_info` if they are texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpuscope.agent.families import FamilySpec
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, fixed_decimals
from gpuscope.model.readings import ABSENT, Device, Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import DcgmField, dcgm_fields, names_by_id
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmEntity
from gpuscope.vendors.nvidia.families.dcgm.field_values import FieldValues, NvlinkRates, wants_links
from gpuscope.vendors.nvidia.nvidia_values import of_nvidia

# The metrics of the 2018 textfile exporter for DCGM: field id, name without `dcgm_`, type, help.
#
# The union of the script's versions, in the order it printed them. Help texts are its own, wrong units
# included: violation times are ns. A row here is all a new metric needs; users add one with `--fields +ID`.


class LegacyMetric(NamedTuple):
    id: int
    name: str
    type: str
    help: str


LEGACY_METRICS = (
    LegacyMetric(100, "sm_clock", "gauge", "SM clock frequency (in MHz)."),
    LegacyMetric(101, "memory_clock", "gauge", "Memory clock frequency (in MHz)."),
    LegacyMetric(140, "memory_temp", "gauge", "Memory temperature (in C)."),
    LegacyMetric(150, "gpu_temp", "gauge", "GPU temperature (in C)."),
    LegacyMetric(155, "power_usage", "gauge", "Power draw (in W)."),
    LegacyMetric(156, "total_energy_consumption", "counter", "Total energy consumption since boot (in mJ)."),
    LegacyMetric(
        200,
        "pcie_tx_throughput",
        "counter",
        "Total number of bytes transmitted through PCIe TX (in KB) via NVML.",
    ),
    LegacyMetric(
        201, "pcie_rx_throughput", "counter", "Total number of bytes received through PCIe RX (in KB) via NVML."
    ),
    LegacyMetric(202, "pcie_replay_counter", "counter", "Total number of PCIe retries."),
    LegacyMetric(203, "gpu_utilization", "gauge", "GPU utilization (in %)."),
    LegacyMetric(204, "mem_copy_utilization", "gauge", "Memory utilization (in %)."),
    LegacyMetric(206, "enc_utilization", "gauge", "Encoder utilization (in %)."),
    LegacyMetric(207, "dec_utilization", "gauge", "Decoder utilization (in %)."),
    LegacyMetric(230, "xid_errors", "gauge", "Value of the last XID error encountered."),
    LegacyMetric(240, "power_violation", "counter", "Throttling duration due to power constraints (in us)."),
    LegacyMetric(
        241, "thermal_violation", "counter", "Throttling duration due to thermal constraints (in us)."
    ),
    LegacyMetric(
        242, "sync_boost_violation", "counter", "Throttling duration due to sync-boost constraints (in us)."
    ),
    LegacyMetric(
        243, "board_limit_violation", "counter", "Throttling duration due to board limit constraints (in us)."
    ),
    LegacyMetric(244, "low_util_violation", "counter", "Throttling duration due to low utilization (in us)."),
    LegacyMetric(
        245, "reliability_violation", "counter", "Throttling duration due to reliability constraints (in us)."
    ),
    LegacyMetric(246, "app_clock_violation", "counter", "Total throttling duration (in us)."),
    LegacyMetric(251, "fb_free", "gauge", "Framebuffer memory free (in MiB)."),
    LegacyMetric(252, "fb_used", "gauge", "Framebuffer memory used (in MiB)."),
    LegacyMetric(310, "ecc_sbe_volatile_total", "counter", "Total number of single-bit volatile ECC errors."),
    LegacyMetric(311, "ecc_dbe_volatile_total", "counter", "Total number of double-bit volatile ECC errors."),
    LegacyMetric(
        312, "ecc_sbe_aggregate_total", "counter", "Total number of single-bit persistent ECC errors."
    ),
    LegacyMetric(
        313, "ecc_dbe_aggregate_total", "counter", "Total number of double-bit persistent ECC errors."
    ),
    LegacyMetric(
        390, "retired_pages_sbe", "counter", "Total number of retired pages due to single-bit errors."
    ),
    LegacyMetric(
        391, "retired_pages_dbe", "counter", "Total number of retired pages due to double-bit errors."
    ),
    LegacyMetric(392, "retired_pages_pending", "counter", "Total number of pages pending retirement."),
    LegacyMetric(
        409,
        "nvlink_flit_crc_error_count_total",
        "counter",
        "Total number of NVLink flow-control CRC errors.",
    ),
    LegacyMetric(
        419, "nvlink_data_crc_error_count_total", "counter", "Total number of NVLink data CRC errors."
    ),
    LegacyMetric(429, "nvlink_replay_error_count_total", "counter", "Total number of NVLink retries."),
    LegacyMetric(
        439, "nvlink_recovery_error_count_total", "counter", "Total number of NVLink recovery errors."
    ),
    LegacyMetric(
        449,
        "nvlink_bandwidth_total",
        "counter",
        "Total number of NVLink bandwidth counters for all lanes",
    ),
    LegacyMetric(
        1001, "fi_prof_gr_engine_active", "gauge", "Ratio of time the graphics engine is active (in %)."
    ),
    LegacyMetric(
        1002,
        "fi_prof_sm_active",
        "gauge",
        "The ratio of cycles an SM has at least 1 warp assigned (in %).",
    ),
    LegacyMetric(
        1003, "fi_prof_sm_occupancy", "gauge", "The ratio of number of warps resident on an SM (in %)."
    ),
    LegacyMetric(
        1004,
        "fi_prof_pipe_tensor_active",
        "gauge",
        "Ratio of cycles the tensor (HMMA) pipe is active (in %).",
    ),
    LegacyMetric(
        1005,
        "fi_prof_dram_active",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data (in %).",
    ),
)

EXTRA_HELP = {
    191: "Fan speed (in %).",
    4: "Device count.",
}
"""Help for frequently added fields; the help of other fields is their name."""

_SIZES = frozenset({90, 250})  # a total that is a size, not a count


def counts_up(field_id: int) -> bool:
    """Whether an added field is a counter, according to its name in DCGM 4.6."""
    name = names_by_id().get(field_id, ("",))[0]
    if field_id in _SIZES or "THROUGHPUT" in name:
        return False
    return name.endswith(("_TOTAL", "_VIOLATION")) or "_ECC_SBE_" in name or "_ECC_DBE_" in name


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
