"""The cycle of the nvidia-smi source: which commands run, and what happens when one fails.

`read` raises only if no GPU can be read. After a failed process query the processes are absent, after a failed
`-q` the values that only `-q` has. A known GPU that cannot be read any more is reported as lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuscope.base.command_runner import Command, CommandResult
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Device, Driver, Maybe, Process, Reading, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_smi.cells import parse_rows, to_device, to_text
from gpuscope.vendors.nvidia.nvidia_smi.query_text import (
    COMPUTE_APPS_FIELDS,
    ListedGpu,
    LoggedGpu,
    logged_processes,
    parse_compute_apps,
    parse_list,
    parse_query_text,
    to_instances,
)
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, known_values, make_device, own, with_readings

# The fields to query: all that the driver's help lists.
#
# Input: the text of `--help-query-gpu`; output: query field names. A field with several names (`"name" or
# "gpu_name"`) is queried by the first, from which its metric name is derived. Only plain names are accepted,
# because they become part of a command line that a remote shell may parse.

_FIELD = re.compile(r'(?:\A|\n)[ \t\r]*\n"([A-Za-z][A-Za-z0-9_.]*)"')
_REFUSED = re.compile(r'Field "([^"\n]+)" is not a valid field to query')

IDENTITY_FIELDS = (
    "uuid",
    "name",
    "driver_model.current",
    "driver_model.pending",
    "vbios_version",
    "driver_version",
    "pci.bus_id",
    "serial",
    "compute_cap",
    "pci.sub_device_id",
    "index",
)

_ALWAYS_KNOWN = """
    timestamp count pci.domain pci.bus pci.device pci.device_id
    pcie.link.gen.current pcie.link.gen.max pcie.link.width.current pcie.link.width.max
    display_active persistence_mode accounting.mode accounting.buffer_size
    inforom.img inforom.oem inforom.ecc inforom.pwr fan.speed pstate
    memory.total memory.reserved memory.used memory.free compute_mode
    utilization.gpu utilization.memory
    encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency
    ecc.mode.current ecc.mode.pending mig.mode.current mig.mode.pending
    retired_pages.single_bit_ecc.count retired_pages.double_bit.count retired_pages.pending
    temperature.gpu temperature.memory power.draw power.limit enforced.power.limit
    power.default_limit power.min_limit power.max_limit
    clocks.current.graphics clocks.current.sm clocks.current.memory clocks.current.video
    clocks.max.graphics clocks.max.sm clocks.max.memory
"""
_REASONS = """
    supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown
    hw_power_brake_slowdown sw_thermal_slowdown sync_boost
"""
_ECC_PLACES = "device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total"

BUILT_IN_FIELDS: tuple[str, ...] = (
    *IDENTITY_FIELDS,
    *_ALWAYS_KNOWN.split(),
    *(f"clocks_event_reasons.{reason}" for reason in _REASONS.split()),
    *(
        f"ecc.errors.{error}.{lifetime}.{place}"
        for error in ("corrected", "uncorrected")
        for lifetime in ("volatile", "aggregate")
        for place in _ECC_PLACES.split()
    ),
)
"""Fields of every driver since 535, used if the help cannot be read."""


def parse_help(text: str) -> tuple[str, ...]:
    """The fields in a help text, plus the identity fields; none if it is not a help text."""
    found = dict.fromkeys(_FIELD.findall(text.replace("\r\n", "\n")))
    if "uuid" not in found:
        return ()
    return tuple(dict.fromkeys((*found, *IDENTITY_FIELDS)))


def without_refused(fields: Sequence[str], complaint: str) -> tuple[str, ...]:
    """`fields` without the field that nvidia-smi refused; unchanged if the error is a different one."""
    match = _REFUSED.search(complaint)
    if match is None or match[1] not in fields:
        return tuple(fields)
    prefix = match[1].partition(".")[0]
    if prefix == "clocks_event_reasons":  # this driver uses the older name for all of them
        return tuple(_with_older_name(field) for field in fields)
    if prefix in ("clocks_event_reasons_counters", "clocks_throttle_reasons"):
        return tuple(field for field in fields if not field.startswith(prefix + "."))
    return tuple(field for field in fields if field != match[1])


def _with_older_name(field: str) -> str:
    prefix, _, rest = field.partition(".")
    return f"clocks_throttle_reasons.{rest}" if prefix == "clocks_event_reasons" else field


# The nvidia-smi command line of the user; `command_runner` runs it.
#
# Over ssh the remote shell splits the arguments again, so no argument may contain a character that is special
# to a shell.


class SmiCommand(Command):
    def __init__(self, text: str, timeout_seconds: float) -> None:
        super().__init__(
            text,
            timeout_seconds,
            program="nvidia-smi",
            if_missing="install the NVIDIA driver's utilities, or set its path with --nvidia-smi-command",
        )


# Parses the versions in `nvidia-smi --version`.
#
# Since driver 610 the CUDA version is named "CUDA UMD version" and the old line contains a sentence, so only
# values in the form of a version are used. Without `--version` (older drivers) all versions are absent.

_CUDA = re.compile(r"[0-9]+\.[0-9]+\Z")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+\Z")


def parse_version(text: str) -> Driver:
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        if _VERSION.match(value.strip()):
            values[" ".join(key.lower().split())] = value.strip()
    cuda = [values[key] for key in ("cuda umd version", "cuda version") if _CUDA.match(values.get(key, ""))]
    return Driver(
        driver_version=values.get("kmd version", values.get("driver version", ABSENT)),
        library_versions=known_values(
            nvml=values.get("nvml version", ABSENT), cuda=cuda[0] if cuda else ABSENT
        ),
    )


MAX_REFUSALS = 20

Layout = frozenset[tuple[str, int, int, int]]  # PCI address, MIG index, GPU instance, compute instance


def queryable_fields(command: str, timeout_seconds: float) -> tuple[str, ...]:
    """The query fields of this machine's nvidia-smi; none if it does not run."""
    try:
        return parse_help(SmiCommand(command, timeout_seconds).run("--help-query-gpu").stdout)
    except SourceError:
        return ()


class NvidiaSmi:
    def __init__(self, command: SmiCommand, fields: tuple[str, ...], driver: Driver) -> None:
        self._command = command
        self._fields = fields
        self._driver = driver
        self._seen: dict[Uuid, int] = {}
        self._logged: dict[str, LoggedGpu] = {}
        self._listed: dict[Uuid, ListedGpu] = {}
        self._layout: Layout = frozenset()

    @classmethod
    def open(cls, command: SmiCommand) -> NvidiaSmi:
        command.require()
        fields = parse_help(command.run("--help-query-gpu").stdout) or BUILT_IN_FIELDS
        return cls(command, fields, parse_version(command.run("--version").stdout))

    def close(self) -> None:
        """Nothing stays open between two runs."""

    def read(self, due: frozenset[Tier]) -> Reading:
        failures: Counter[str] = Counter()
        devices = self._read_devices(failures)
        in_mig_mode = any(device.is_split for device in devices)
        logged = in_mig_mode or Tier.SLOW in due
        if logged:
            logged = self._read_log(failures)
        if in_mig_mode:
            self._read_layout(failures, force=Tier.SLOW in due)
        devices = tuple(map(self._with_details, devices))
        if in_mig_mode and logged:
            processes: Maybe[tuple[Process, ...]] = logged_processes(devices, self._logged)
        else:
            processes = self._read_compute_apps(devices, failures)
        return Reading(
            drivers={NVIDIA: self._driver_of(devices)},
            devices=devices,
            processes=processes,
            failures=dict(failures),
        )

    def _driver_of(self, devices: tuple[Device, ...]) -> Driver:
        for device in devices:
            version = to_text(own(device).smi_cells.get("driver_version", ""))
            if version is not ABSENT:
                return replace(self._driver, driver_version=version)
        return self._driver

    # Devices.

    def _read_devices(self, failures: Counter[str]) -> tuple[Device, ...]:
        result = self._query_gpus()
        devices = self._parse_devices(result, failures)
        if not result.ok:
            failures["--query-gpu"] += 1
            devices = self._read_reachable(failures) or devices
            if not devices:
                raise self._command.failure(result, "--query-gpu")
        elif not devices:
            raise SourceError(
                f"nvidia-smi --query-gpu lists no GPU: {result.error_line()}", code=result.exit_code
            )
        if failures:
            present = {device.uuid for device in devices}
            devices += tuple(
                make_device(uuid=uuid, index=index, lost=True)
                for uuid, index in self._seen.items()
                if uuid not in present
            )
        self._seen = {device.uuid: device.index for device in devices}
        return devices

    def _query_gpus(self, *which: str) -> CommandResult:
        for _ in range(MAX_REFUSALS):
            result = self._command.run("--query-gpu=" + ",".join(self._fields), "--format=csv", *which)
            accepted = self._fields
            if not result.ok:
                accepted = without_refused(self._fields, result.stdout + result.stderr)
            if accepted == self._fields:
                break
            self._fields = accepted
        return result

    def _parse_devices(self, result: CommandResult, failures: Counter[str]) -> tuple[Device, ...]:
        table = parse_rows(result.stdout, "uuid", cut_short=not result.ok)
        devices: dict[Uuid, Device] = {}
        unreadable = table.dropped
        for position, cells in enumerate(table.rows):
            device = to_device(cells, position)
            if device is None or device.uuid in devices:
                unreadable += 1
            else:
                devices[device.uuid] = device
        if unreadable:
            failures["rows of --query-gpu"] += unreadable
        return tuple(devices.values())

    def _read_reachable(self, failures: Counter[str]) -> tuple[Device, ...]:
        """The GPUs that still answer: nvidia-smi stops at the first lost GPU."""
        listed = parse_list(self._command.run("-L").stdout)
        if not listed:
            return ()
        return self._parse_devices(self._query_gpus("-i", ",".join(listed)), failures)

    # Values that no CSV column has.

    def _read_log(self, failures: Counter[str]) -> bool:
        self._logged = {}
        try:
            self._logged = parse_query_text(self._command.run_checked("-q").stdout)
        except SourceError:
            failures["-q"] += 1
        return bool(self._logged)

    def _read_layout(self, failures: Counter[str], *, force: bool) -> None:
        """Runs `-L` once per MIG layout, or always with `force`: recreated instances may reuse ids."""
        layout = frozenset(
            (address, mig.index, mig.gpu_instance, mig.compute_instance)
            for address, gpu in self._logged.items()
            for mig in gpu.migs
        )
        if layout == self._layout and not force:
            return
        self._listed, self._layout = {}, frozenset()
        try:
            self._listed = parse_list(self._command.run_checked("-L").stdout)
            self._layout = layout
        except SourceError:
            failures["-L"] += 1

    def _with_details(self, device: Device) -> Device:
        address = device.pci_bus_id
        logged = None if address is ABSENT else self._logged.get(address.upper())
        if logged is None:
            return device
        listed = self._listed.get(device.uuid) if device.is_split else None
        instances = device.instances if listed is None else to_instances(listed.migs, logged.migs)
        return replace(with_readings(device, logged.readings), instances=instances)

    def _read_compute_apps(
        self, devices: tuple[Device, ...], failures: Counter[str]
    ) -> Maybe[tuple[Process, ...]]:
        try:
            result = self._command.run_checked(f"--query-compute-apps={COMPUTE_APPS_FIELDS}", "--format=csv")
            return parse_compute_apps(result.stdout, [device.uuid for device in devices])
        except SourceError:
            failures["--query-compute-apps"] += 1
            return ABSENT
