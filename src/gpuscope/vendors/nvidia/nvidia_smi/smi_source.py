"""The cycle of the nvidia-smi source: which commands run, and what happens when one fails.

`read` raises only if no GPU can be read. After a failed process query the processes are absent, after a failed
`-q` the values that only `-q` has. A known GPU that cannot be read any more is reported as lost.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from gpuscope.base.command_runner import Command, CommandResult
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Device, Driver, Maybe, Process, Reading, Uuid
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_smi.app_rows import (
    COMPUTE_APPS_FIELDS,
    logged_processes,
    parse_compute_apps,
)
from gpuscope.vendors.nvidia.nvidia_smi.cells import parse_rows, to_text
from gpuscope.vendors.nvidia.nvidia_smi.device_cells import to_device
from gpuscope.vendors.nvidia.nvidia_smi.query_fields import BUILT_IN_FIELDS, parse_help, without_refused
from gpuscope.vendors.nvidia.nvidia_smi.query_text import (
    ListedGpu,
    LoggedGpu,
    parse_list,
    parse_query_text,
    to_instances,
)
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, known_values, make_device, own, with_readings

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
