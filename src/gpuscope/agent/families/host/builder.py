"""Family `host`: the machine's metrics with node_exporter's names, for the part that dashboards use.

Names, HELP, TYPE, labels, order and number format are node_exporter's, so that an agent can replace it on port
9100. An absent reading has no sample and no HELP line. A filesystem that does not answer has `device_error` 1
with the reason as a label, and no size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gpuscope.agent.families import FamilySpec
from gpuscope.agent.families.host.infiniband_table import (
    COUNTERS,
    FOUR_BYTES,
    HW_COUNTERS,
    INFO_HELP,
    LEGACY_COUNTERS,
    LIFESPAN,
    PORT_GAUGES,
)
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample, go_float
from gpuscope.model.readings import ABSENT, HostReading, Maybe, Snapshot
from gpuscope.model.readings.host import InfinibandDevice, InfinibandPort, InfinibandReading

# `node_infiniband_*`: the ports of InfiniBand and RoCE adapters, as node_exporter has them.

INFINIBAND_PREFIX = "node_infiniband_"
Labels = Callable[[tuple[tuple[str, str], ...]], LabelSet]


def infiniband_families(reading: InfinibandReading, labels_of: Labels) -> Iterator[MetricFamily]:
    """`labels_of` returns the same object for the same labels."""
    info: list[Sample] = []
    by_metric: dict[tuple[str, str], list[Sample]] = {}
    for device in sorted(reading.devices, key=lambda device: device.name):
        info.append(Sample(labels_of(_info_pairs(device)), 1))
        for port in sorted(device.ports, key=lambda port: port.port):
            labels = labels_of((("device", device.name), ("port", port.port)))
            for suffix, help_text, value in _port_values(port):
                by_metric.setdefault((suffix, help_text), []).append(Sample(labels, value))
    info.sort(key=lambda sample: sample.labels.pairs)
    yield MetricFamily(f"{INFINIBAND_PREFIX}info", "gauge", INFO_HELP, info, go_float)
    for (suffix, help_text), samples in by_metric.items():
        kind = "counter" if suffix.endswith("_total") else "gauge"
        yield MetricFamily(f"{INFINIBAND_PREFIX}{suffix}", kind, help_text, samples, go_float)


def _info_pairs(device: InfinibandDevice) -> tuple[tuple[str, str], ...]:
    return (
        ("board_id", device.board_id),
        ("device", device.name),
        ("firmware_version", device.firmware_version),
        ("hca_type", device.hca_type),
    )


def _port_values(port: InfinibandPort) -> Iterator[tuple[str, str, float]]:
    for attribute, (suffix, help_text) in PORT_GAUGES.items():
        value = getattr(port, attribute)
        if value is not ABSENT:
            yield suffix, help_text, value
    for counters, names in (
        (port.counters, COUNTERS),
        (port.legacy_counters, LEGACY_COUNTERS),
        (port.hw_counters, HW_COUNTERS),
    ):
        for name, count in counters.items():
            if name in names:
                yield *names[name], float(4 * count if name in FOUR_BYTES else count)
    if "lifespan" in port.hw_counters:
        yield *LIFESPAN, float(port.hw_counters["lifespan"] // 1000)


MAX_LABEL_SETS = 50_000

SINGLE: Final = (  # attribute of HostReading, metric, help
    ("boot_time_seconds", "node_boot_time_seconds", "Node boot time, in unixtime."),
    ("time_seconds", "node_time_seconds", "System time in seconds since epoch (1970)."),
    ("load1", "node_load1", "1m load average."),
    ("load5", "node_load5", "5m load average."),
    ("load15", "node_load15", "15m load average."),
)
KERNEL: Final = {
    "context_switches_total": "Total number of context switches.",
    "forks_total": "Total number of forks.",
    "intr_total": "Total number of interrupts serviced.",
    "procs_blocked": "Number of processes blocked waiting for I/O to complete.",
    "procs_running": "Number of processes in runnable state.",
}
CLOCK: Final = {
    "estimated_error_seconds": "Estimated error in seconds.",
    "maxerror_seconds": "Maximum error in seconds.",
    "offset_seconds": "Time offset in between local system and reference clock.",
    "sync_status": "Is clock synchronized to a reliable server (1 = yes, 0 = no).",
}
DISK: Final = {
    "reads_completed_total": "The total number of reads completed successfully.",
    "reads_merged_total": "The total number of reads merged.",
    "read_bytes_total": "The total number of bytes read successfully.",
    "read_time_seconds_total": "The total number of seconds spent by all reads.",
    "writes_completed_total": "The total number of writes completed successfully.",
    "writes_merged_total": "The number of writes merged.",
    "written_bytes_total": "The total number of bytes written successfully.",
    "write_time_seconds_total": "This is the total number of seconds spent by all writes.",
    "io_now": "The number of I/Os currently in progress.",
    "io_time_seconds_total": "Total seconds spent doing I/Os.",
    "io_time_weighted_seconds_total": "The weighted # of seconds spent doing I/Os.",
    "discards_completed_total": "The total number of discards completed successfully.",
    "discards_merged_total": "The total number of discards merged.",
    "discarded_sectors_total": "The total number of sectors discarded successfully.",
    "discard_time_seconds_total": "This is the total number of seconds spent by all discards.",
    "flush_requests_total": "The total number of flush requests completed successfully",
    "flush_requests_time_seconds_total": "This is the total number of seconds spent by all flush requests.",
}
FILESYSTEM_SIZES: Final = (  # attribute of Filesystem, metric, help
    ("available_bytes", "avail_bytes", "Filesystem space available to non-root users in bytes."),
    ("files", "files", "Filesystem total file nodes."),
    ("files_free", "files_free", "Filesystem total free file nodes."),
    ("free_bytes", "free_bytes", "Filesystem free space in bytes."),
    ("size_bytes", "size_bytes", "Filesystem size in bytes."),
)
GROUPS: Final = ("cpu", "filesystem", "disk", "network")  # node_<group>_*: many samples each

Pairs = tuple[tuple[str, str], ...]
CpuKey = tuple[str, ...]  # (cpu, mode)


class HostFamily:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        self._groups = {group for group in GROUPS if only.any_under(f"node_{group}_")}
        self._host: Maybe[HostReading] = ABSENT
        self._infiniband: Maybe[InfinibandReading] = ABSENT
        self._families: tuple[MetricFamily, ...] = ()
        self._label_sets: dict[Pairs, LabelSet] = {}
        self._orders: dict[str, tuple[tuple[CpuKey, ...], list[tuple[CpuKey, LabelSet]]]] = {}

    def to_families(self, snapshot: Snapshot) -> Iterable[MetricFamily]:
        # The host is read every few seconds, snapshots are built every second.
        if snapshot.host is not self._host or snapshot.infiniband is not self._infiniband:
            self._host, self._infiniband = snapshot.host, snapshot.infiniband
            families = [f for f in self._build() if f.samples and f.name in self._only]
            self._families = tuple(sorted(families, key=lambda family: family.name))
        return self._families

    def _build(self) -> Iterator[MetricFamily]:
        if self._host is not ABSENT:
            yield from self._build_host(self._host)
        if self._infiniband is not ABSENT and self._only.any_under(INFINIBAND_PREFIX):
            yield from infiniband_families(self._infiniband, self._labels)

    def _build_host(self, host: HostReading) -> Iterator[MetricFamily]:
        yield from self._single(host)
        if "cpu" in self._groups:
            yield from self._cpu(host)
        for suffix, value in host.memory.items():
            if (name := f"node_memory_{suffix}") in self._only:
                help_text = f"Memory information field {suffix}."
                yield _family(name, "gauge", help_text, [Sample(NO_LABELS, value)])
        for suffix, value in host.vmstat.items():
            if (name := f"node_vmstat_{suffix}") in self._only:
                help_text = f"/proc/vmstat information field {suffix}."
                yield _family(name, "untyped", help_text, [Sample(NO_LABELS, value)])
        if "filesystem" in self._groups:
            yield from self._filesystems(host)
        if "disk" in self._groups:
            yield from self._by_device("disk", host.disks, DISK)
            yield self._disk_info(host)
        if "network" in self._groups:
            yield from self._by_device("network", host.networks, None)

    def _single(self, host: HostReading) -> Iterator[MetricFamily]:
        for attribute, name, help_text in SINGLE:
            value: Maybe[float] = getattr(host, attribute)
            if value is not ABSENT and name in self._only:
                yield _family(name, "gauge", help_text, [Sample(NO_LABELS, value)])
        for suffix, value in host.kernel.items():
            if (name := f"node_{suffix}") in self._only:
                help_text = KERNEL.get(suffix, suffix)
                yield _family(name, _type(suffix), help_text, [Sample(NO_LABELS, value)])
        for suffix, value in host.clock.items():
            if (name := f"node_timex_{suffix}") in self._only:
                yield _family(name, "gauge", CLOCK[suffix], [Sample(NO_LABELS, value)])
        if host.uname:
            labels = self._labels(tuple(sorted(host.uname.items())))
            help_text = "Labeled system information as provided by the uname system call."
            yield _family("node_uname_info", "gauge", help_text, [Sample(labels, 1)])

    def _cpu(self, host: HostReading) -> Iterator[MetricFamily]:
        for name, seconds, help_text in (
            ("node_cpu_seconds_total", host.cpu_seconds, "Seconds the CPUs spent in each mode."),
            (
                "node_cpu_guest_seconds_total",
                host.cpu_guest_seconds,
                "Seconds the CPUs spent in guests (VMs) for each mode.",
            ),
        ):
            samples = [Sample(labels, seconds[key]) for key, labels in self._cpu_order(name, seconds)]
            yield _family(name, "counter", help_text, samples)

    def _cpu_order(self, name: str, seconds: Mapping[CpuKey, float]) -> list[tuple[CpuKey, LabelSet]]:
        """The keys in output order. Sorted once: a GPU server has thousands of them."""
        keys = tuple(seconds)
        known, order = self._orders.get(name, ((), []))
        if keys != known:
            order = [(key, LabelSet((("cpu", key[0]), ("mode", key[1])))) for key in sorted(keys)]
            self._orders[name] = keys, order
        return order

    def _by_device(
        self, subsystem: str, devices: Mapping[str, Mapping[str, float]], helps: Mapping[str, str] | None
    ) -> Iterator[MetricFamily]:
        """Without `helps`, the help contains the name, as in node_exporter for network devices."""
        by_suffix: dict[str, list[Sample]] = {}
        for device in sorted(devices):
            labels = self._labels((("device", device),))
            for suffix, value in devices[device].items():
                by_suffix.setdefault(suffix, []).append(Sample(labels, value))
        for suffix, samples in by_suffix.items():
            statistic = suffix.removesuffix("_total")
            help_text = f"Network device statistic {statistic}." if helps is None else helps.get(suffix, suffix)
            yield _family(f"node_{subsystem}_{suffix}", _type(suffix), help_text, samples)

    def _disk_info(self, host: HostReading) -> MetricFamily:
        samples = [
            Sample(self._labels((("device", device), *sorted(host.disk_info[device].items()))), 1)
            for device in sorted(host.disk_info)
        ]
        return _family("node_disk_info", "gauge", "Info of /sys/block/<block_device>.", samples)

    def _filesystems(self, host: HostReading) -> Iterator[MetricFamily]:
        sizes: dict[str, list[Sample]] = {metric: [] for _, metric, _ in FILESYSTEM_SIZES}
        errors, read_only, mounts = [], [], []
        for found in sorted(host.filesystems, key=lambda f: (f.device, f.fstype, f.mountpoint)):
            labels = self._filesystem_labels(found.device, "", found.fstype, found.mountpoint)
            for attribute, metric, _ in FILESYSTEM_SIZES:
                sizes[metric].append(Sample(labels, getattr(found, attribute)))
            errors.append(Sample(labels, 0))
            read_only.append(Sample(labels, int(found.read_only)))
            if found.device_number is not ABSENT:
                major, minor = found.device_number
                pairs = (
                    ("device", found.device),
                    ("major", major),
                    ("minor", minor),
                    ("mountpoint", found.mountpoint),
                )
                mounts.append(Sample(self._labels(pairs), 1))
        for failed in host.filesystem_errors:
            labels = self._filesystem_labels(failed.device, failed.error, failed.fstype, failed.mountpoint)
            errors.append(Sample(labels, 1))
            read_only.append(Sample(labels, int(failed.read_only)))
        for _, metric, help_text in FILESYSTEM_SIZES:
            yield _family(f"node_filesystem_{metric}", "gauge", help_text, sizes[metric])
        help_text = "Whether an error occurred while getting statistics for the given device."
        yield _family("node_filesystem_device_error", "gauge", help_text, _in_order(errors))
        yield _family("node_filesystem_readonly", "gauge", "Filesystem read-only status.", _in_order(read_only))
        mount_help = "Filesystem mount information."
        yield _family("node_filesystem_mount_info", "gauge", mount_help, _in_order(mounts))

    def _filesystem_labels(self, device: str, error: str, fstype: str, mountpoint: str) -> LabelSet:
        return self._labels(
            (("device", device), ("device_error", error), ("fstype", fstype), ("mountpoint", mountpoint))
        )

    def _labels(self, pairs: Pairs) -> LabelSet:
        """Returns the same object for the same labels, which keeps its text."""
        known = self._label_sets.get(pairs)
        if known is None:
            if len(self._label_sets) >= MAX_LABEL_SETS:  # hostile names must not fill the memory
                self._label_sets.clear()
            known = self._label_sets[pairs] = LabelSet(pairs)
        return known


def _type(suffix: str) -> str:
    return "counter" if suffix.endswith("_total") else "gauge"


def _in_order(samples: list[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: sample.labels.pairs)


def _family(name: str, kind: str, help_text: str, samples: list[Sample]) -> MetricFamily:
    return MetricFamily(name=name, type=kind, help=help_text, samples=samples, number=go_float)


FAMILY = FamilySpec(
    name="host",
    summary="node_exporter's cpu, load, memory, filesystem, disk, network, InfiniBand and uname metrics",
    build=lambda settings: HostFamily(),
    openmetrics=True,  # every counter ends in _total, so no series is renamed
    on_demand=True,
)
